"""What every worker does beside its jobs, and the worker that finds its jobs by polling.

main thread    one job at a time: the child dies with this thread
housekeeper    beats, repeats wake-ups, moves pipelines on, ends cancelled jobs that nobody works on
courier        sends webhooks
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

import structlog
from django.db import close_old_connections, connection

from control.billing.spending.services import batches_review
from control.core.observability import metrics
from control.core.observability.listener import listen
from control.core.settings.config import get_config
from control.core.storage.staging import staging_purge
from control.data.files.services import files_expire
from control.data.uploads.services import uploads_expire
from control.queue.jobs.config import get_job_config
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import jobs_to_cancel
from control.queue.jobs.services import job_claim, job_claim_next, reconcile, worker_beat, worker_leave
from control.queue.jobs.state import Claim
from control.serving.captures.services import captures_prune
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.events.services import events_prune
from control.tenants.idempotency.services import keys_purge
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.batches.selectors import batches_overdue
from control.workflows.batches.tidy import batches_tidy
from control.workflows.pipelines.stages import pipelines_reconcile
from workers.tasks.attempt import Handler, look_at, work_folders_sweep
from workers.tasks.batch import BatchHandler
from workers.tasks.boundary import safely
from workers.tasks.courier import Courier
from workers.tasks.evaluation import EvaluationHandler
from workers.tasks.model_check import ModelCheckHandler
from workers.tasks.training import TrainingHandler
from workers.tasks.transactions import transactions_limit

log = structlog.get_logger(__name__)

HOUSE_SECONDS = 300.0  # a chore may wait long for a database or storage that is slow to answer

HANDLERS: dict[str, Handler] = {
    Job.Kind.BATCH: BatchHandler(),
    Job.Kind.TRAINING: TrainingHandler(),
    Job.Kind.EVALUATION: EvaluationHandler(),
    Job.Kind.MODEL_CHECK: ModelCheckHandler(),
}


class JobWorker:
    """One per process. `stop` ends it: the running attempt drains, nothing new is claimed."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stop = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeper", daemon=True)
        self._courier = Courier(self.stop)
        self._house_kept_at = time.monotonic()

    def start(self) -> None:
        transactions_limit()
        self._housekeeper.start()
        self._courier.start()
        log.info("worker started", worker=self.name, metrics_port=listen(self.is_alive))

    def close(self) -> None:
        self.stop.set()
        self._housekeeper.join(timeout=10)
        self._courier.join(timeout=20)  # what is being sent has a deadline of its own
        safely(lambda: worker_leave(worker=self.name), "worker not signed off")
        log.info("worker stopped", worker=self.name)

    def is_alive(self) -> bool:
        """Whether the housekeeper still makes its rounds, with or without the database."""
        return time.monotonic() - self._house_kept_at < HOUSE_SECONDS

    def look(self) -> bool:
        """Works on the job whose turn it is. Returns: False: there is none."""
        if self.stop.is_set():
            return False  # the reconciler of another worker will say it again
        claim = job_claim_next(worker=self.name)
        metrics.wakeups.labels("nothing" if claim is None else "claimed").inc()
        return self._look_at(claim)

    def poll_forever(self) -> None:
        """Works on due jobs until `stop` is set."""
        while not self.stop.is_set():
            close_old_connections()
            if not safely(self.look, "could not look for jobs"):
                self.stop.wait(get_job_config().poll_seconds)

    def _look_at(self, claim: Claim | None) -> bool:
        if claim is not None:
            look_at(claim, stop=self.stop, handlers=HANDLERS)
        return claim is not None

    def _keep_house(self) -> None:
        chores: tuple[tuple[str, Callable[[], object]], ...] = (
            ("heartbeat not written", lambda: worker_beat(worker=self.name, role="jobs")),
            ("wake-ups not repeated", reconcile),
            ("cancelled and overdue jobs not ended", self._end_waiting),
            ("pipelines not moved on", pipelines_reconcile),
            ("captured requests not deleted", captures_prune),
            ("paused batches not reviewed", batches_review),
            ("rollouts not moved on", rollouts_reconcile),
            ("idempotency keys not forgotten", keys_purge),
            ("files not expired", files_expire),
            ("staging not emptied", staging_purge),
            ("batches not tidied", batches_tidy),
            ("work of killed attempts not removed", work_folders_sweep),
            ("old events not deleted", events_prune),
            ("uploads not expired", uploads_expire),
        )
        while not self.stop.is_set():
            close_old_connections()
            with across_tenants(Across.HOUSEKEEPING):
                for complaint, chore in chores:
                    safely(chore, complaint)
                    self._house_kept_at = time.monotonic()
            self.stop.wait(get_config().reconcile_seconds)
        connection.close()

    def _end_waiting(self) -> None:
        """A busy worker must not keep a customer waiting whose job never began and has only to be ended."""
        overdue = batches_overdue().values_list("job_id", flat=True)
        for job_id in [*jobs_to_cancel().values_list("pk", flat=True), *overdue]:
            if not self.stop.is_set():
                self._look_at(job_claim(job_id=job_id, worker=self.name))
                self._house_kept_at = time.monotonic()
