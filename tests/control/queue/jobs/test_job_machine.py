"""A job stays consistent if workers claim it, die or use outdated claims, and customers pause or cancel it, in any
order. Hypothesis generates the sequences of these events."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control.queue.jobs.failures import Failure
from control.queue.jobs.models import Job, JobEvent, JobShard
from control.queue.jobs.services import (
    job_cancel,
    job_claim,
    job_end_cancelled,
    job_fail,
    job_pause,
    job_pause_on_request,
    job_release,
    job_renew,
    job_resume,
    job_succeed,
)
from control.queue.jobs.shards import ShardRows, job_blame_shards, job_commit_shard
from control.queue.jobs.state import LEGAL_MOVES, TERMINAL, Claim, LeaseLost
from tests.control.queue.jobs.helpers import add_shards, end_backoff, expire_lease, submit
from workers.contracts import FailureClass

NUM_ROWS = 12
ROWS = ShardRows(completed=1, failed=0, usage={})
_FAILURES = st.sampled_from([FailureClass.INFRA, FailureClass.BUG, FailureClass.OUT_OF_MEMORY])


def _pause(*, claim: Claim) -> None:
    job_pause(claim=claim, why={"code": "cap"})


class JobMachine(RuleBasedStateMachine):
    """One job, and the events that can happen to it.

    `claims` contains all claims, because workers with outdated claims keep trying to write.

    `committed_keys` maps the number of each committed shard to its storage key.
    """

    progress: Callable[[str], None]  # set by the test
    num_started = 0

    def __init__(self) -> None:
        super().__init__()
        JobMachine.num_started += 1
        if JobMachine.num_started % 200 == 0:
            self.progress(f"{JobMachine.num_started} sequences have started")
        self.job = submit()  # of a new organization, so that the sequences together do not reach a limit of queued jobs
        add_shards(self.job, 4, 4, 4)
        self.claims: list[Claim] = []
        self.committed_keys: dict[int, str] = {}
        self.last_status = Job.Status.QUEUED
        self.fence = 0

    def row(self) -> Job:
        return Job.objects.get(pk=self.job.pk)

    def is_current(self, claim: Claim) -> bool:
        row = self.row()
        return row.status == Job.Status.RUNNING and row.fence == claim.fence

    def attempt(self, claim: Claim, write: Any) -> Any:
        """Writes with the claim, which must fail if and only if the claim is outdated."""
        is_current_claim = self.is_current(claim)
        try:
            result = write()
        except LeaseLost:
            assert not is_current_claim, "the current claim was refused"
            return None
        assert is_current_claim, "an outdated claim was accepted"
        return result

    @rule(worker=st.sampled_from(["a", "b"]))
    def claim(self, worker: str) -> None:
        claim = job_claim(job_id=self.job.pk, worker=worker)
        if claim is not None:
            assert claim.fence == self.fence + 1
            self.claims.append(claim)

    @rule()
    def lease_expires(self) -> None:
        expire_lease(self.job)

    @rule()
    def backoff_ends(self) -> None:
        end_backoff(self.job)

    @rule()
    def cancel(self) -> None:
        job_cancel(job=self.job)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        self.attempt(claim, lambda: job_renew(claim=claim))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        shard_no = data.draw(st.sampled_from([shard.shard_no for shard in self.shards()]))
        key = f"{shard_no}.{claim.fence}"
        if self.attempt(claim, lambda: job_commit_shard(claim=claim, shard_no=shard_no, storage_key=key, rows=ROWS)):
            assert shard_no not in self.committed_keys, "a shard was committed twice"
            self.committed_keys[shard_no] = key

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        shard_nos = data.draw(
            st.lists(st.sampled_from([shard.shard_no for shard in self.shards()]), min_size=1, max_size=2)
        )
        self.attempt(claim, lambda: job_blame_shards(claim=claim, shard_nos=shard_nos))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), failure_class=_FAILURES)
    def fail(self, data: st.DataObject, failure_class: FailureClass) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        failure = Failure(failure_class=failure_class, code="code", message="message")
        self.attempt(claim, lambda: job_fail(claim=claim, failure=failure))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), end=st.sampled_from([job_release, job_end_cancelled, _pause]))
    def end_attempt(self, data: st.DataObject, end: Any) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        self.attempt(claim, lambda: end(claim=claim))

    @rule()
    def pause_on_request(self) -> None:
        row = self.row()
        is_allowed = row.status not in TERMINAL and row.cancel_requested_at is None
        assert job_pause_on_request(job=self.job, why={"code": "requested"}) == is_allowed

    @rule(code=st.sampled_from(["cap", "requested"]))
    def resume(self, code: str) -> None:
        paused = self.row().paused
        assert job_resume(job=self.job, code=code) == (paused is not None and paused["code"] == code)

    @precondition(lambda self: self.claims and len(self.committed_keys) == len(self.shards()))
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        self.attempt(claim, lambda: job_succeed(claim=claim, result={}))

    def shards(self) -> list[JobShard]:
        return list(JobShard.objects.filter(job=self.job).order_by("row_from"))

    @invariant()
    def transitions_are_legal_fences_grow_and_only_running_jobs_have_a_lease(self) -> None:
        row = self.row()
        status = Job.Status(row.status)
        if status != self.last_status:
            # One rule can make two transitions.
            reachable = LEGAL_MOVES[self.last_status] | {
                later for to in LEGAL_MOVES[self.last_status] for later in LEGAL_MOVES[to]
            }
            assert status in reachable
            assert self.last_status not in TERMINAL
        self.last_status = status
        assert row.fence >= self.fence
        assert row.fence == row.attempt == len(self.claims)
        self.fence = row.fence
        assert (row.lease_until is not None) == (row.status == Job.Status.RUNNING)
        assert (row.finished_at is not None) == (row.status in TERMINAL)
        assert (row.paused is not None) == (row.status == Job.Status.PAUSED)

    @invariant()
    def every_row_is_in_one_shard_and_committed_shards_do_not_change(self) -> None:
        shards = self.shards()
        rows = [row for shard in shards for row in range(shard.row_from, shard.row_to)]
        assert rows == list(range(NUM_ROWS))
        assert {shard.shard_no: shard.storage_key for shard in shards if shard.storage_key} == self.committed_keys

    @invariant()
    def events_are_numbered_without_gaps(self) -> None:
        events = list(JobEvent.objects.filter(job=self.job).order_by("seq").values_list("seq", "type"))
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        assert [kind for _, kind in events].count("shard_committed") == len(self.committed_keys)


@pytest.mark.django_db
@pytest.mark.parametrize("num_runs", [100, pytest.param(2_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_the_tables_of_jobs_stay_consistent_in_any_order_of_events(
    num_runs: int, progress: Callable[[str], None]
) -> None:
    assert connections["default"].in_atomic_block, "all runs are rolled back together"
    JobMachine.progress = staticmethod(progress)
    checks = list(HealthCheck)
    machine: Any = JobMachine.TestCase
    machine.settings = settings(
        max_examples=num_runs, stateful_step_count=50, deadline=None, suppress_health_check=checks, derandomize=True
    )
    machine().runTest()
