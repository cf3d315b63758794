"""R17 of docs/reliability.md: a batch ends correctly after random sequences of requests, attempts and faults.

The real batch handler of the worker runs in this process. `BatchMachine.attempt` replaces its child process.
"""

import json
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings as django_settings
from django.db.models.functions import Now
from django.test import Client
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from control.billing.spending.services import spend_cap_create, spend_cap_delete, spend_cap_update
from control.core.storage.backends import get_storage
from control.queue.jobs.failures import MAX_STALLED_ATTEMPTS
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_claim
from control.queue.jobs.state import Claim, LeaseLost
from control.tenants.accounts.models import Organization
from control.workflows.batches import assemble
from control.workflows.batches.assemble import _publish
from control.workflows.batches.models import Batch
from control.workflows.batches.state import TERMINAL
from control.workflows.batches.tidy import batches_tidy
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.queue.jobs.helpers import end_backoff, expire_lease
from tests.workers.supervisor.fake_child import answer_line
from tests.workers.supervisor.history import check_histories
from workers.contracts import BatchSpec, FailureClass, Finished, ShardDone
from workers.supervisor import attempt, batch
from workers.supervisor.attempt import Attempt
from workers.supervisor.batch import BatchHandler
from workers.supervisor.lease import Lease
from workers.supervisor.outcomes import AttemptFailed, Cancelled, ChildCrashed, Draining

NUM_ROWS = 7
ENDINGS: dict[str, Callable[[], BaseException]] = {  # fault -> makes the exception with which the attempt ends
    "crash": lambda: ChildCrashed("worker_crashed", "It died.", sent_event=True),
    "crash at once": lambda: ChildCrashed("worker_crashed", "It died.", sent_event=False),
    "bug": lambda: AttemptFailed(FailureClass.BUG, "bug", "A bug."),
    "out of memory": lambda: AttemptFailed(FailureClass.OUT_OF_MEMORY, "out_of_memory", "Too large."),
    "expired": lambda: AttemptFailed(FailureClass.EXPIRED, "expired", "Too late."),
    "full disk": lambda: OSError(28, "No space left on device"),
    "drain": Draining,
    "the supervisor is killed": KeyboardInterrupt,
}
EXTERNAL_FAULTS = (  # what happens to the job while the child works on it
    "overtaken",  # the lease expires, and another worker claims the job
    "cancelled",
    "the job is cancelled",
    "the cap is reached",
    "cancelled as the cap is reached",
)
LATE_KILLS = ("killed before the batch ends", "killed before the job ends")
FAULTS = (*["none"] * 4, *LATE_KILLS * 2, *EXTERNAL_FAULTS, *ENDINGS)  # a repeated value is drawn more often
NO_BUDGET, AMPLE_BUDGET = 0, 10**9


class BatchMachine(RuleBasedStateMachine):
    organization: Organization  # set by the fixture `machine`
    folder: Path
    progress: Callable[[str], None]
    num_ended: int

    @initialize()
    def create(self) -> None:
        rows = [chat_row(f"row-{number}", content=f"prompt {number}") for number in range(NUM_ROWS)]
        self.file = make_file(self.organization, rows)
        self.client: Client = client_of(self.organization)
        self.batch_id: str = self.post()
        self.responses: list[dict[str, Any]] = []  # the batch in the API after each step
        self.cap = spend_cap_create(organization=self.organization, project=None, nanousd=AMPLE_BUDGET)

    def post(self) -> str:
        body = {"input_file_id": self.file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        headers = {"Idempotency-Key": self.file.pk}
        response = self.client.post("/v1/batches", body, content_type="application/json", headers=headers)
        assert response.status_code == 200, response.content
        return str(response.json()["id"])

    def api_batch(self) -> dict[str, Any]:
        response = self.client.get(f"/v1/batches/{self.batch_id}")
        assert response.status_code == 200
        return dict(response.json())

    def job(self) -> Job:
        return Job.objects.get(batch=self.batch_id)

    @rule()
    def repeat_the_request(self) -> None:
        assert self.post() == self.batch_id

    @rule()
    def cancel(self) -> None:
        response = self.client.post(f"/v1/batches/{self.batch_id}/cancel")
        assert response.status_code in (200, 400, 409), response.content

    @rule()
    def cancel_the_job(self) -> None:
        response = self.client.post(f"/v1/jobs/{self.job().pk}/cancel")
        assert response.status_code == 202, response.content

    @rule(nanousd=st.sampled_from([NO_BUDGET, AMPLE_BUDGET]))
    def set_the_cap(self, nanousd: int) -> None:
        spend_cap_update(cap=self.cap, nanousd=nanousd)

    @rule()
    def time_passes(self) -> None:
        """Advances time past the lease of a dead worker and the delay before another attempt."""
        expire_lease(self.job())
        end_backoff(self.job())

    @rule()
    def window_ends(self) -> None:
        Batch.objects.filter(pk=self.batch_id).exclude(status__in=TERMINAL).update(expires_at=Now())

    @rule()
    def tidy(self) -> None:
        batches_tidy()

    @rule(fault=st.sampled_from(FAULTS), at_shard=st.integers(0, 3))
    def claim_and_attempt(self, fault: str, at_shard: int) -> None:
        claim = job_claim(job_id=self.job().pk, worker="worker")
        if claim is not None:
            self.attempt(claim, fault, at_shard)

    def attempt(self, claim: Claim, fault: str = "none", at_shard: int = 0) -> None:
        """Runs an attempt in which the fault happens before the child reports its shard number `at_shard`."""

        def run_child(_: Attempt, spec: BatchSpec, *, on_result: Callable[[ShardDone], None], **__: object) -> object:
            if Job.objects.get(pk=claim.job_id).cancel_requested_at is not None:
                raise Cancelled  # the real `run_child` raises it when the lease's thread sees the cancellation
            for number, shard in enumerate(spec.shards):
                if number == at_shard:
                    self.apply_fault(fault)
                on_result(self.answer(claim, shard))
            return Finished(result={}, artifacts={})

        def publish(*arguments: Any) -> None:
            if fault == "killed before the batch ends":
                raise KeyboardInterrupt
            _publish(*arguments)
            if fault == "killed before the job ends":
                raise KeyboardInterrupt

        running = Attempt(
            claim=claim,
            job=Job.objects.select_related("organization").get(pk=claim.job_id),
            lease=Lease(claim),
            folder=Path(tempfile.mkdtemp(dir=self.folder)),
            log_path=self.folder / "log",
            stop=threading.Event(),
        )
        with (
            patch.object(batch, "run_child", run_child),
            patch.object(assemble, "_publish", publish),
            suppress(LeaseLost, KeyboardInterrupt),  # the attempt lost its job, or its supervisor was killed
        ):
            attempt._run_handler(running, BatchHandler())

    def apply_fault(self, fault: str) -> None:
        """Applies the fault while the child works. The thread that renews the lease has not noticed it yet."""
        match fault:
            case "overtaken":
                expire_lease(self.job())
                assert job_claim(job_id=self.job().pk, worker="another") is not None
            case "cancelled":
                self.cancel()
            case "the job is cancelled":
                self.cancel_the_job()
            case "the cap is reached":
                self.set_the_cap(nanousd=NO_BUDGET)
            case "cancelled as the cap is reached":
                self.cancel()
                self.set_the_cap(nanousd=NO_BUDGET)
            case _ if fault in ENDINGS:
                raise ENDINGS[fault]()

    def answer(self, claim: Claim, shard: Any) -> ShardDone:
        rows = [chat_row(f"row-{number}", content=f"prompt {number}") for number in range(NUM_ROWS)]
        path = self.folder / f"{shard.shard_no}.jsonl"
        lines = [answer_line(claim.job_id, n, rows[n]) for n in range(shard.row_from, shard.row_to)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ShardDone(shard_no=shard.shard_no, path=str(path), completed=len(lines), failed=0, usage={})

    @invariant()
    def the_api_shows_only_legal_status_changes(self) -> None:
        response = self.api_batch()
        counts = dict(response["request_counts"])
        assert counts.pop("total") == sum(counts.values()), "the counts do not add up"
        if self.responses and self.responses[-1]["status"] in TERMINAL:
            assert response == self.responses[-1], "an ended batch has changed"
        self.responses.append(response)
        check_histories()

    def teardown(self) -> None:
        """Runs attempts without faults and with an ample cap: the batch must end, with each row in one of its files."""
        self.set_the_cap(nanousd=AMPLE_BUDGET)
        for _ in range(20):
            self.time_passes()
            claim = job_claim(job_id=self.job().pk, worker="last")
            if claim is None:
                break
            self.attempt(claim)
        check_histories([self.job().pk], all_ended=True)
        assert self.api_batch()["status"] in TERMINAL
        spend_cap_delete(cap=self.cap)
        Batch.objects.filter(pk=self.batch_id).delete()  # the checks of the next run must not include this batch
        Job.objects.filter(organization=self.organization).delete()
        BatchMachine.num_ended += 1
        if BatchMachine.num_ended % 50 == 0:
            self.progress(f"{BatchMachine.num_ended} sequences have ended")


@pytest.fixture
def machine(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Callable[[str], None]
) -> type[BatchMachine]:
    limits = {"shard_rows": 2, "data_dir": tmp_path, "requests_per_minute": 0}
    monkeypatch.setattr(django_settings, "SLIPSTREAM", django_settings.SLIPSTREAM.model_copy(update=limits))
    BatchMachine.organization, BatchMachine.folder = make_organization(), tmp_path
    BatchMachine.progress, BatchMachine.num_ended = staticmethod(progress), 0
    base_model = make_base_model("tiny")
    base_model.path = str(tmp_path)
    base_model.save()
    return BatchMachine


def test_a_finalizing_batch_ends_if_its_job_is_cancelled_after_the_worker_died(machine: type[BatchMachine]) -> None:
    instance = machine()
    instance.create()
    instance.claim_and_attempt(fault="killed before the batch ends", at_shard=0)
    instance.cancel_the_job()
    instance.time_passes()

    instance.claim_and_attempt(fault="none", at_shard=0)

    instance.the_api_shows_only_legal_status_changes()
    assert (instance.api_batch()["status"], instance.job().status) == ("cancelled", "cancelled")


def test_a_batch_ends_if_it_is_cancelled_when_its_cap_is_reached(machine: type[BatchMachine]) -> None:
    instance = machine()
    instance.create()

    instance.claim_and_attempt(fault="cancelled as the cap is reached", at_shard=1)

    instance.the_api_shows_only_legal_status_changes()
    assert (instance.api_batch()["status"], instance.job().status) == ("cancelled", "cancelled")
    assert instance.api_batch()["request_counts"]["completed"] == 4  # shards 0 and 1, of two rows each


def test_a_batch_ends_and_keeps_its_other_rows_if_storage_loses_a_shard(machine: type[BatchMachine]) -> None:
    instance = machine()
    instance.create()
    instance.claim_and_attempt(fault="drain", at_shard=2)
    get_storage().delete(JobShard.objects.exclude(storage_key="").earliest("shard_no").storage_key)
    for _ in range(1 + MAX_STALLED_ATTEMPTS):  # only the first attempt makes progress, with the remaining rows
        instance.time_passes()
        instance.claim_and_attempt(fault="none", at_shard=0)

    instance.the_api_shows_only_legal_status_changes()
    assert instance.api_batch()["status"] == "failed"
    counts = instance.api_batch()["request_counts"]
    assert (counts["completed"], counts["failed"]) == (NUM_ROWS - 2, 2)


@pytest.mark.parametrize("num_runs", [5, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_batch_ends_correctly_after_any_sequence_of_requests_attempts_and_faults(
    machine: type[BatchMachine], num_runs: int
) -> None:
    case: Any = machine.TestCase
    case.settings = settings(
        max_examples=num_runs,
        stateful_step_count=20 if num_runs < 100 else 50,
        suppress_health_check=list(HealthCheck),
        derandomize=num_runs < 100,  # a long run explores new sequences
        phases=[Phase.generate],  # without shrinking, which takes too long
    )

    case().runTest()
