"""A worker process: its threads, its housekeeping, and its loop that polls for jobs.

main thread     runs one job at a time; the child process dies with this thread
heart           writes heartbeats, also while a chore takes long
housekeeper     cleans this machine's folders, and runs the installation's chores that are due
webhook sender  sends webhooks
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from django.db import close_old_connections, connection

from control.billing.thresholds.services import thresholds_report
from control.core.observability import metrics
from control.core.observability.listener import listen
from control.core.processes.engine_homes import engine_homes_limit
from control.core.processes.log_files import logs_limit
from control.core.settings.config import get_config
from control.core.storage.staging import staging_purge
from control.data.files.services import files_expire
from control.data.uploads.services import uploads_expire
from control.models.catalog.cache import model_copies_limit
from control.queue.devices.services import devices_register, devices_renew, devices_withdraw
from control.queue.jobs.chores import chores_claim
from control.queue.jobs.config import get_job_config
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import jobs_unhold
from control.queue.jobs.selectors import jobs_to_cancel
from control.queue.jobs.services import job_claim, job_claim_next, reconcile, worker_beat, worker_leave
from control.queue.jobs.state import Claim
from control.serving.acceptance.services import acceptance_watch_all
from control.serving.captures.services import captures_prune, captures_seal
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.events.services import events_prune
from control.tenants.idempotency.services import keys_purge
from control.tenants.quotas.storage import reservations_expire
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.batches.caps import batches_review
from control.workflows.batches.selectors import batches_overdue
from control.workflows.batches.tidy import batches_tidy
from control.workflows.loops.rounds import rounds_reconcile
from control.workflows.loops.triggers import rounds_begin
from control.workflows.offboarding.draining import organizations_drain
from control.workflows.offboarding.erasing import organizations_erase
from control.workflows.offboarding.exporting import exports_continue, exports_expire
from control.workflows.pipelines.endpoint_caps import endpoints_review
from control.workflows.pipelines.stages import pipelines_reconcile
from control.workflows.quotes.caps import jobs_review
from workers.supervisor.attempt import Handler, run_attempt, work_folders_sweep
from workers.supervisor.batch import BatchHandler
from workers.supervisor.evaluation import EvaluationHandler
from workers.supervisor.guarded import run_guarded
from workers.supervisor.model_check import ModelCheckHandler
from workers.supervisor.stored_bytes import stored_bytes_recount
from workers.supervisor.tidy import jobs_tidy
from workers.supervisor.training import TrainingHandler
from workers.supervisor.transactions import transactions_limit
from workers.supervisor.webhook_sender import WebhookSender

log = structlog.get_logger(__name__)

MAX_STEP_SECONDS = 300.0  # a housekeeping step may wait long for a slow database or storage

HANDLERS: dict[str, Handler] = {
    Job.Kind.BATCH: BatchHandler(),
    Job.Kind.TRAINING: TrainingHandler(),
    Job.Kind.EVALUATION: EvaluationHandler(),
    Job.Kind.MODEL_CHECK: ModelCheckHandler(),
}

# Recurring tasks of the whole installation. A task that is due is claimed and run by one worker. The number is the
# task's period, as a multiple of `reconcile_seconds`: 1 for tasks for which customers wait, more for the deletion of
# old data.
CHORES: Mapping[str, tuple[int, Callable[[], object]]] = {
    "start held jobs": (1, jobs_unhold),
    "repeat wake-ups": (1, reconcile),
    "advance pipelines": (1, pipelines_reconcile),
    "review paused batches": (1, batches_review),
    "review jobs paused by quotes": (1, jobs_review),
    "pause endpoints at quotes": (12, endpoints_review),
    "advance rollouts": (1, rollouts_reconcile),
    "watch acceptance": (12, acceptance_watch_all),
    "advance rounds of loops": (1, rounds_reconcile),
    "begin rounds of loops": (6, rounds_begin),
    "report spending thresholds": (1, thresholds_report),
    "tidy batches": (6, batches_tidy),
    "tidy jobs": (1, jobs_tidy),
    "expire files": (6, files_expire),
    "expire uploads": (6, uploads_expire),
    "expire storage reservations": (60, reservations_expire),
    "delete idempotency keys": (6, keys_purge),
    "encrypt captured requests": (12, captures_seal),
    "delete captured requests": (12, captures_prune),
    "delete old events": (60, events_prune),
    "make organization exports": (1, exports_continue),
    "delete organization exports": (12, exports_expire),
    "stop leaving organizations": (1, organizations_drain),
    "erase organizations": (1, organizations_erase),
    "recount stored bytes": (720, stored_bytes_recount),
}


class JobWorker:
    """The only worker of its process.

    After `stop` is set, the worker claims no further job, and the running attempt ends after its current shard or
    checkpoint, at the latest after `drain_seconds`.
    """

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stop = threading.Event()
        self._heart = threading.Thread(target=self._send_heartbeats, name="heart", daemon=True)
        self._housekeeper = threading.Thread(target=self._do_housekeeping, name="housekeeper", daemon=True)
        self._webhook_sender = WebhookSender(self.stop)
        self._last_step_at = time.monotonic()

    def start(self) -> None:
        transactions_limit()
        with across_tenants(Across.HOUSEKEEPING):
            run_guarded(devices_register, "devices not registered; the next heartbeat tries again")
        self._heart.start()
        self._housekeeper.start()
        self._webhook_sender.start()
        log.info("worker started", worker=self.name, metrics_port=listen(self.is_alive))

    def close(self) -> None:
        self.stop.set()
        self._heart.join(timeout=10)
        self._housekeeper.join(timeout=10)
        self._webhook_sender.join(timeout=20)  # each delivery in flight has a deadline of its own
        run_guarded(lambda: worker_leave(worker=self.name), "worker not removed from the registry")
        run_guarded(devices_withdraw, "devices not withdrawn")
        log.info("worker stopped", worker=self.name)

    def is_alive(self) -> bool:
        """Tells whether the housekeeper still completes its steps. A step that ends with an error counts as
        completed."""
        return time.monotonic() - self._last_step_at < MAX_STEP_SECONDS

    def claim_next(self) -> bool:
        """Claims the next due job and works on it. Returns False if no job is due."""
        if self.stop.is_set():
            return False  # another worker will repeat the wake-up
        claim = job_claim_next(worker=self.name)
        metrics.wakeups.labels("nothing" if claim is None else "claimed").inc()
        return self._run_claimed(claim)

    def poll_forever(self) -> None:
        """Works on due jobs until `stop` is set."""
        while not self.stop.is_set():
            close_old_connections()
            if not run_guarded(self.claim_next, "could not look for jobs"):
                self.stop.wait(get_job_config().poll_seconds)

    def _run_claimed(self, claim: Claim | None) -> bool:
        if claim is not None:
            run_attempt(claim, stop=self.stop, handlers=HANDLERS)
        return claim is not None

    def _send_heartbeats(self) -> None:
        while not self.stop.is_set():
            close_old_connections()
            with across_tenants(Across.HOUSEKEEPING):
                run_guarded(lambda: worker_beat(worker=self.name, role="jobs"), "heartbeat not written")
                run_guarded(devices_renew, "devices not renewed")
            self.stop.wait(get_config().reconcile_seconds)
        connection.close()

    def _do_housekeeping(self) -> None:
        chores = {**CHORES, "end jobs never begun": (1, self._end_jobs_never_begun)}
        while not self.stop.is_set():
            close_old_connections()
            with across_tenants(Across.HOUSEKEEPING):
                self._step("empty staging", staging_purge)
                self._step("limit logs", lambda: logs_limit(get_config()))
                self._step("limit copies of models", lambda: model_copies_limit(get_config()))
                self._step("limit homes of engines", lambda: engine_homes_limit(get_config()))
                self._step("remove work folders of killed attempts", work_folders_sweep)
                self._step("chores", lambda: self._do_chores(chores))
            self.stop.wait(get_config().reconcile_seconds)
        connection.close()

    def _do_chores(self, chores: Mapping[str, tuple[int, Callable[[], object]]]) -> None:
        period = get_config().reconcile_seconds
        for name in chores_claim({name: num_periods * period for name, (num_periods, _) in chores.items()}):
            self._step(name, chores[name][1])

    def _step(self, name: str, step: Callable[[], object]) -> None:
        run_guarded(step, f"housekeeping failed: {name}")
        self._last_step_at = time.monotonic()

    def _end_jobs_never_begun(self) -> None:
        """Ends cancelled and overdue jobs that never began, so that their customers need not wait for a free worker."""
        overdue = batches_overdue().values_list("job_id", flat=True)
        for job_id in [*jobs_to_cancel().values_list("pk", flat=True), *overdue]:
            if not self.stop.is_set():
                self._run_claimed(job_claim(job_id=job_id, worker=self.name))
                self._last_step_at = time.monotonic()
