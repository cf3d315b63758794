"""A pipeline that real workers run pauses at the cap of its quote in each stage, and continues when the cap is raised.

The device time of attempts that the service lost, and of training that a gate refused, is credited once.
"""

import datetime as dt
import sys

from django.core.management import call_command
from django.db import transaction
from django.db.models import F, Sum
from django.db.models.functions import Now

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.spending.selectors import spent_this_month
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.state import event_add
from control.workflows.batches.caps import quote_spent_nanousd
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.services import pipeline_cancel
from control.workflows.quotes.models import Quote
from control.workflows.quotes.services import quote_cap_set
from tests.control.billing.spending.support import make_quote
from tests.control.billing.usage.test_credits import credits_of, use_hour
from tests.control.workflows.pipelines.helpers import REPORT, advance_to_stage, make_pipeline
from tests.workers.supervisor.conftest import LEASE_SECONDS, RENEW_SECONDS
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_pipeline import wait_for_status

DOLLAR = 10**9  # in nanodollars
RECONCILE = """
import django
django.setup()
from control.workflows.pipelines.stages import pipelines_reconcile
while True:
    pipelines_reconcile()
"""


def make_quoted(stack: LiveStack, *, cap_nanousd: int) -> tuple[Pipeline, Quote]:
    call_command("device_price_set", "cpu", "3600")  # a dollar per second
    quote = make_quote(stack.organization, stack.base_model, cap_nanousd=cap_nanousd)
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model, num_rows=4, quote_id=quote.pk)
    return pipeline, quote


def wait_until_paused(stack: LiveStack, kind: str) -> Job:
    stack.wait_until(lambda: Job.objects.filter(kind=kind, status=Job.Status.PAUSED).exists(), 60)
    return Job.objects.get(kind=kind)


def num_committed(kind: str, event: str) -> int:
    return JobEvent.objects.filter(job__kind=kind, type=event).count()


def test_a_pipeline_pauses_at_the_cap_in_each_stage_after_at_most_one_further_checkpoint(stack: LiveStack) -> None:
    pipeline, quote = make_quoted(stack, cap_nanousd=0)
    stack.start_worker(child="--row-seconds 0.8")
    wait_until_paused(stack, "batch")
    assert num_committed("batch", "shard_committed") == 0

    quote_cap_set(quote=quote, nanousd=None)
    stack.wait_until(lambda: Job.objects.filter(kind="training").exclude(checkpoint_key="").exists(), 60)
    quote_cap_set(quote=quote, nanousd=1)
    committed = num_committed("training", "checkpoint_committed")
    training = wait_until_paused(stack, "training")

    assert num_committed("training", "checkpoint_committed") <= committed + 1
    assert training.paused is not None
    assert training.paused["cap_id"] == quote.pk
    assert training.stalled_attempts == 0
    spent = quote_spent_nanousd(quote.pk)
    assert spent == LedgerLine.objects.filter(device_kind="cpu").aggregate(cost=Sum("cost_nanousd"))["cost"] > 0

    quote_cap_set(quote=quote, nanousd=spent + 10**15)
    wait_for_status(stack, pipeline, "deploying")
    training.refresh_from_db()
    assert training.result["resumed_from"] >= 1
    assert quote_spent_nanousd(quote.pk) > spent


def record_endings() -> None:
    """Records the final events of jobs that a test has ended by itself, as workers would."""
    ended = Job.objects.filter(status=Job.Status.SUCCEEDED).exclude(events__type=Job.Status.SUCCEEDED)
    with transaction.atomic():
        for job in ended:
            event_add(job_id=job.pk, type=Job.Status.SUCCEEDED, data={})
            Job.objects.filter(pk=job.pk, finished_at=None).update(finished_at=Now())


def test_an_evaluation_above_the_cap_starts_no_child_and_can_be_cancelled(stack: LiveStack) -> None:
    pipeline, _ = make_quoted(stack, cap_nanousd=DOLLAR)
    pipeline = advance_to_stage("evaluate", pipeline)
    record_endings()
    assert pipeline.training_job is not None
    call_command("device_price_set", "cuda", "2")
    use_hour(stack.organization, pipeline.training_job.pk)
    stack.start_worker()

    evaluation = wait_until_paused(stack, "evaluation")

    assert evaluation.checkpoint_key == ""
    pipeline_cancel(pipeline=pipeline)
    assert stack.wait_for_job(evaluation.pk).status == Job.Status.CANCELLED


def test_the_attempt_of_a_killed_worker_is_charged_and_given_back_once(stack: LiveStack) -> None:
    call_command("device_price_set", "cpu", "3600")
    pipeline = make_pipeline(stack.organization, base_model=stack.base_model, num_rows=4, deploy=False)
    worker = stack.start_worker(child="--row-seconds 0.3")
    # The time of a killed worker's attempt ends at the last renewal of its lease.
    renewed = F("claimed_at") + dt.timedelta(seconds=LEASE_SECONDS + RENEW_SECONDS / 2)
    training = Job.objects.filter(kind="training", lease_until__gt=renewed).exclude(checkpoint_key="")
    stack.wait_until(training.exists, 60)
    kill_9(worker)
    stack.start_worker()

    pipeline = wait_for_status(stack, pipeline, "succeeded")

    lines = LedgerLine.objects.filter(subject=Subject.TRAINING_TIME).order_by("sequence")
    assert list(lines.values_list("sequence", flat=True)) == ["1", "2", "credit:1"]
    used, last, credit = lines
    assert credit.cost_nanousd == -used.cost_nanousd
    assert last.cost_nanousd > 0


def test_gates_judged_by_processes_that_are_killed_give_each_attempt_back_once(stack: LiveStack) -> None:
    call_command("device_price_set", "cuda", "2")
    jobs = []
    for number in range(10):
        named = {"name": f"p{number}", "gate": {"min_speedup": 9}}
        made = make_pipeline(stack.organization, base_model=stack.base_model, num_rows=4, **named)
        pipeline = advance_to_stage("evaluate", made)
        assert pipeline.training_job_id is not None
        jobs.append(pipeline.training_job_id)
        for sequence in ("1", "2"):
            use_hour(stack.organization, pipeline.training_job_id, sequence)
    Job.objects.filter(kind="evaluation").update(status=Job.Status.SUCCEEDED, result=REPORT)
    record_endings()
    rejected = Pipeline.objects.filter(status="rejected")
    judges = [stack.start_worker(sys.executable, "-c", RECONCILE) for _ in range(2)]

    for victim in judges:
        judged = rejected.count()
        stack.wait_until(lambda seen=judged: rejected.count() > seen, 60)  # type: ignore[misc]
        kill_9(victim)
        stack.start_worker(sys.executable, "-c", RECONCILE)
    stack.wait_until(lambda: rejected.count() == len(jobs), 60)

    for job in jobs:
        assert [line.sequence for line in credits_of(job)] == ["credit:1", "credit:2"]
    total = LedgerLine.objects.aggregate(cost=Sum("cost_nanousd"))["cost"]
    assert total == spent_this_month(stack.organization.pk, None) == 0
