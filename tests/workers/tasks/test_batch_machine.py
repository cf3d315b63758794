"""R17: one batch through the API, workers and everything that can go wrong, in any order.

Worker and child run in this process: the handler is the real one, and a drawn sequence stands in for its child.
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

from control.accounts.models import Organization
from control.batches.models import Batch
from control.batches.state import TERMINAL
from control.batches.tidy import batches_tidy
from control.jobs.models import Job
from control.jobs.services import job_claim
from control.jobs.state import Claim, LeaseLost
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.jobs.helpers import end_pause, expire_lease
from tests.workers.tasks.fake_child import answer_line
from tests.workers.tasks.history import check_histories
from workers.contracts import BatchSpec, FailureClass, Finished, ShardDone
from workers.tasks import attempt, batch
from workers.tasks.attempt import Attempt
from workers.tasks.batch import BatchHandler
from workers.tasks.lease import Lease
from workers.tasks.outcomes import AttemptFailed, Cancelled, ChildCrashed, Draining

NUM_ROWS = 7
ENDINGS: dict[str, Callable[[], BaseException]] = {
    "crash": lambda: ChildCrashed("worker_crashed", "It died.", got_going=True),
    "crash at once": lambda: ChildCrashed("worker_crashed", "It died.", got_going=False),
    "bug": lambda: AttemptFailed(FailureClass.BUG, "bug", "A bug."),
    "out of memory": lambda: AttemptFailed(FailureClass.OUT_OF_MEMORY, "out_of_memory", "Too large."),
    "expired": lambda: AttemptFailed(FailureClass.EXPIRED, "expired", "Too late."),
    "full disk": lambda: OSError(28, "No space left on device"),
    "drain": Draining,
    "the supervisor is killed": KeyboardInterrupt,
}


class BatchMachine(RuleBasedStateMachine):
    organization: Organization  # set by the test, which owns the database
    folder: Path

    @initialize()
    def create(self) -> None:
        rows = [chat_row(f"row-{number}", content=f"prompt {number}") for number in range(NUM_ROWS)]
        self.file = make_file(self.organization, rows)
        self.client: Client = client_of(self.organization)
        self.batch_id: str = self.post()
        self.seen: list[dict[str, Any]] = []

    def post(self) -> str:
        body = {"input_file_id": self.file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        headers = {"Idempotency-Key": self.file.pk}
        answer = self.client.post("/v1/batches", body, content_type="application/json", headers=headers)
        assert answer.status_code == 200, answer.content
        return str(answer.json()["id"])

    def shown(self) -> dict[str, Any]:
        answer = self.client.get(f"/v1/batches/{self.batch_id}")
        assert answer.status_code == 200
        return dict(answer.json())

    def job(self) -> Job:
        return Job.objects.get(batch=self.batch_id)

    @rule()
    def ask_again(self) -> None:
        assert self.post() == self.batch_id

    @rule()
    def cancel(self) -> None:
        answer = self.client.post(f"/v1/batches/{self.batch_id}/cancel")
        assert answer.status_code in (200, 400, 409), answer.content

    @rule()
    def lease_runs_out(self) -> None:
        expire_lease(self.job())

    @rule()
    def pause_ends(self) -> None:
        end_pause(self.job())

    @rule()
    def window_ends(self) -> None:
        Batch.objects.filter(pk=self.batch_id).update(expires_at=Now())

    @rule()
    def tidy(self) -> None:
        batches_tidy()

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        claim = job_claim(job_id=self.job().pk, worker="worker")
        if claim is not None:
            self.attempt(claim, data)

    def attempt(self, claim: Claim, data: st.DataObject | None) -> None:
        """`data` draws what goes wrong; None: nothing does."""

        def run_child(held: Attempt, spec: BatchSpec, *, on_result: Callable[[ShardDone], None], **_: object) -> object:
            if Job.objects.get(pk=claim.job_id).cancel_requested_at is not None:
                raise Cancelled  # as the lease's thread says
            for shard in spec.shards:
                fault = data and data.draw(st.sampled_from(["none", "none", "overtaken", *ENDINGS]))
                if fault == "overtaken":
                    expire_lease(self.job())
                    assert job_claim(job_id=claim.job_id, worker="another") is not None
                elif fault in ENDINGS:
                    raise ENDINGS[str(fault)]()
                on_result(self.answer(claim, shard))
            return Finished(result={}, artifacts={})

        held = Attempt(
            claim=claim,
            job=Job.objects.select_related("organization").get(pk=claim.job_id),
            lease=Lease(claim),
            folder=Path(tempfile.mkdtemp(dir=self.folder)),
            log_path=self.folder / "log",
            stop=threading.Event(),
        )
        with (
            patch.object(batch, "run_child", run_child),
            suppress(LeaseLost, KeyboardInterrupt),  # somebody else has the job, or will
        ):
            attempt._work(held, BatchHandler())

    def answer(self, claim: Claim, shard: Any) -> ShardDone:
        rows = [chat_row(f"row-{number}", content=f"prompt {number}") for number in range(NUM_ROWS)]
        path = self.folder / f"{shard.shard_no}.jsonl"
        lines = [answer_line(claim.job_id, n, rows[n]) for n in range(shard.row_from, shard.row_to)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ShardDone(shard_no=shard.shard_no, path=str(path), completed=len(lines), failed=0, usage={})

    @invariant()
    def the_api_tells_a_life_that_is_legal(self) -> None:
        now = self.shown()
        counts = dict(now["request_counts"])
        assert counts.pop("total") == sum(counts.values()), "counts always sum"
        if self.seen and self.seen[-1]["status"] in TERMINAL:
            assert now == self.seen[-1], "what has ended does not change"
        self.seen.append(now)
        check_histories()

    def teardown(self) -> None:
        """Left alone, the batch comes to an end, and each row is in one of its files."""
        for _ in range(20):
            expire_lease(self.job())
            end_pause(self.job())
            claim = job_claim(job_id=self.job().pk, worker="last")
            if claim is None:
                break
            self.attempt(claim, None)
        check_histories([self.job().pk], all_ended=True)
        assert self.shown()["status"] in TERMINAL
        Batch.objects.filter(pk=self.batch_id).delete()  # the next run's checks are not of this one too
        Job.objects.filter(organization=self.organization).delete()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("num_runs", "num_steps"), [(5, 20), pytest.param(1_000, 50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_no_order_of_requests_work_and_faults_breaks_a_batch(
    num_runs: int, num_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"shard_rows": 2, "data_dir": tmp_path, "requests_per_minute": 0}
    monkeypatch.setattr(django_settings, "SLIPSTREAM", django_settings.SLIPSTREAM.model_copy(update=limits))
    BatchMachine.organization, BatchMachine.folder = make_organization(), tmp_path
    base_model = make_base_model("tiny")
    base_model.path = str(tmp_path)
    base_model.save()
    machine: Any = BatchMachine.TestCase
    machine.settings = settings(
        max_examples=num_runs,
        stateful_step_count=num_steps,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        phases=[Phase.generate],  # as it was found: to make it small takes longer than a test may
    )

    machine().runTest()
