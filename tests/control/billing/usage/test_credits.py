"""The cost of device time is credited once if an attempt failed for a reason of the service or the gate refused."""

import datetime as dt
import threading
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Sum
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import CreditReason, LedgerLine, Subject
from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import cap_reached, spent_this_month
from control.billing.usage.credits import credit_add
from control.billing.usage.device_time import device_time_add
from control.core.settings.config import get_config
from control.queue.jobs.failures import Failure
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_fail, job_pause_on_request, job_release, job_succeed
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import as_tenant
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.stages import pipeline_advance
from tests.control.billing.ledger.test_ledger import age_claim
from tests.control.factories import make_job, make_organization
from tests.control.queue.jobs.helpers import claim, end_backoff
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_evaluation, make_pipeline
from workers.contracts import FailureClass

DOLLAR = 10**9  # in nanodollars
HOUR = dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def _price(db: None) -> None:
    call_command("device_price_set", "cpu", "2")
    call_command("device_price_set", "cuda", "2")


@pytest.fixture
def configure(settings: Any) -> Any:
    def change(**values: Any) -> None:
        settings.SLIPSTREAM = get_config().model_copy(update=values)

    return change


def credits_of(object_id: str) -> list[LedgerLine]:
    return list(LedgerLine.objects.filter(object_id=object_id, credit_reason__isnull=False).order_by("pk"))


def cost_of(object_id: str) -> int:
    return LedgerLine.objects.filter(object_id=object_id).aggregate(cost=Sum("cost_nanousd"))["cost"] or 0


def use_hour(organization: Organization, object_id: str, sequence: str = "1") -> None:
    """Records an hour of training, which costs 2 dollars."""
    now = timezone.now()
    with transaction.atomic():
        device_time_add(
            caller=Caller(organization_id=organization.pk),
            subject=Subject.TRAINING_TIME,
            object_id=object_id,
            sequence=sequence,
            device_kind="cuda",
            since=now - HOUR,
            until=now,
        )


def give_back(object_id: str, sequence: str = "1", **values: Any) -> int:
    return credit_add(
        **{
            "subject": Subject.TRAINING_TIME,
            "object_id": object_id,
            "sequence": sequence,
            "percent": 100,
            "reason": CreditReason.ATTEMPT_FAILED,
            **values,
        }
    )


def fail(failure_class: FailureClass, organization: Organization, *, kind: str = "training") -> Job:
    """Runs an attempt of an hour, which then fails."""
    job = make_job(organization, kind=kind)
    held = claim(job)
    age_claim(job, 3600)
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + HOUR)
    job_fail(claim=held, failure=Failure(failure_class=failure_class, code="c", message="m"))
    return job


@pytest.mark.parametrize("failure_class", list(FailureClass))
@pytest.mark.parametrize("kind", ["batch", "training", "evaluation"])
def test_exactly_the_attempts_that_failed_for_reasons_of_the_service_are_credited(
    organization: Organization, failure_class: FailureClass, kind: str
) -> None:
    job = fail(failure_class, organization, kind=kind)

    found = credits_of(job.pk)
    if failure_class not in (FailureClass.INFRA, FailureClass.BUG):
        assert found == []
        assert cost_of(job.pk) >= 2 * DOLLAR
        return
    (credit,) = found
    used = LedgerLine.objects.get(object_id=job.pk, credit_reason=None)
    assert (credit.sequence, credit.cost_nanousd, credit.count) == ("credit:1", -used.cost_nanousd, 0)
    assert credit.credited_count == used.count
    assert (credit.subject, credit.ended_at) == (used.subject, used.ended_at)
    assert cost_of(job.pk) == 0 == spent_this_month(organization.pk, None)


def test_an_attempt_whose_machine_was_lost_is_credited_and_one_that_was_stopped_is_not(
    organization: Organization,
) -> None:
    job = make_job(organization, kind="training")
    claim(job)
    age_claim(job, 100)
    Job.objects.filter(pk=job.pk).update(claimed_at=timezone.now() - 2 * HOUR)
    second = claim(job, "another worker")  # the first attempt's lease has expired
    assert [(line.sequence, line.credit_reason) for line in credits_of(job.pk)] == [("credit:1", "attempt_failed")]

    job_release(claim=second)
    end_backoff(job)
    claim(job)
    job_pause_on_request(job=job, why={"code": "requested", "message": ""})

    assert len(credits_of(job.pk)) == 1


def test_operators_set_the_part_of_the_cost_of_a_failed_attempt_that_is_credited(
    organization: Organization, configure: Any
) -> None:
    configure(credit_failed_percent=25)
    quarter = fail(FailureClass.INFRA, organization)
    configure(credit_failed_percent=0)
    nothing = fail(FailureClass.INFRA, organization)

    used = LedgerLine.objects.get(object_id=quarter.pk, credit_reason=None)
    (credit,) = credits_of(quarter.pk)
    assert credit.cost_nanousd == -(used.cost_nanousd * 25 // 100)
    assert credit.credited_count == pytest.approx(used.count / 4, abs=1)
    assert credits_of(nothing.pk) == []


def test_an_attempt_without_a_cost_gets_no_credit(organization: Organization) -> None:
    call_command("device_price_remove", "cpu")

    assert credits_of(fail(FailureClass.BUG, organization).pk) == []


def test_an_attempt_is_credited_once_whatever_the_reason(organization: Organization) -> None:
    use_hour(organization, "job_1")

    amounts = [give_back("job_1", reason=reason) for reason in (*CreditReason, *CreditReason)]

    assert amounts == [2 * DOLLAR, 0, 0, 0]
    assert spent_this_month(organization.pk, None) == 0


def test_a_gate_that_refuses_a_speculator_credits_every_attempt_at_its_training(client: Client) -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline(gate={"min_speedup": 9}))
    training, evaluation = pipeline.training_job_id or "", pipeline.evaluation_job_id or ""
    for sequence in ("1", "2"):
        use_hour(pipeline.organization, training, sequence)
    use_hour(pipeline.organization, evaluation)

    pipeline = end_evaluation(pipeline)
    for _ in range(2):
        pipeline = pipeline_advance(pipeline=pipeline)

    assert pipeline.status == "rejected"
    assert [line.credit_reason for line in credits_of(training)] == ["gate_rejected"] * 2
    assert (cost_of(training), cost_of(evaluation)) == (0, 2 * DOLLAR)


def test_a_pipeline_or_an_attempt_ends_only_together_with_its_credit(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the end and before the credit. Neither is stored, and another process repeats both."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("control.queue.jobs.services.attempt_credit", die)
    monkeypatch.setattr("control.workflows.pipelines.stages.credits_add_for_job", die)
    with pytest.raises(KeyboardInterrupt):
        fail(FailureClass.INFRA, organization)
    pipeline = advance_to_stage("evaluate", make_pipeline(gate={"min_speedup": 9}))
    assert pipeline.training_job is not None
    use_hour(pipeline.organization, pipeline.training_job.pk)
    with pytest.raises(KeyboardInterrupt):
        end_evaluation(pipeline)

    assert Job.objects.get(organization=organization).status == Job.Status.RUNNING
    assert pipeline_fresh(pipeline).status == "gating"
    monkeypatch.undo()
    assert pipeline_advance(pipeline=pipeline).status == "rejected"
    assert len(credits_of(pipeline.training_job.pk)) == 1


def test_a_gate_that_passes_a_speculator_credits_nothing() -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline())
    assert pipeline.training_job is not None
    use_hour(pipeline.organization, pipeline.training_job.pk)

    assert end_evaluation(pipeline).status == "deploying"
    assert credits_of(pipeline.training_job.pk) == []


def test_credits_for_refusals_by_gates_have_a_monthly_limit_for_each_organization(configure: Any) -> None:
    configure(credit_gate_limit=3.0)
    organization, given = make_organization(), []
    base_model = None
    for number in range(3):
        made = make_pipeline(organization, base_model=base_model, name=f"p{number}", gate={"min_speedup": 9})
        base_model = made.base_model
        pipeline = advance_to_stage("evaluate", made)
        assert pipeline.training_job is not None
        use_hour(organization, pipeline.training_job.pk)
        end_evaluation(pipeline)
        given.append(-sum(line.cost_nanousd for line in credits_of(pipeline.training_job.pk)))

    assert given == [2 * DOLLAR, DOLLAR, 0]
    assert spent_this_month(organization.pk, None) == 3 * DOLLAR


def test_credits_for_failures_of_the_service_take_nothing_from_the_limit_of_credits_of_gates(
    organization: Organization,
) -> None:
    for object_id in ("failed", "refused"):
        use_hour(organization, object_id)
    assert give_back("failed", reason=CreditReason.ATTEMPT_FAILED) == 2 * DOLLAR

    given = give_back("refused", reason=CreditReason.GATE_REJECTED, monthly_limit_nanousd=2 * DOLLAR)

    assert given == 2 * DOLLAR


def test_spend_caps_and_costs_count_the_amount_after_credits(client: Client, organization: Organization) -> None:
    cap = SpendCap.objects.create(organization=organization, nanousd=4 * DOLLAR)
    caller = Caller(organization_id=organization.pk)
    for sequence in ("1", "2"):
        use_hour(organization, "job_1", sequence)
    reached = cap_reached(caller)
    assert reached is not None
    assert reached.cap_id == cap.pk

    give_back("job_1", "2", percent=50)

    assert cap_reached(caller) is None
    assert client.get("/v1/usage").json()["cost"]["value"] == 3
    start = int((timezone.now() - HOUR).timestamp())
    (bucket,) = [
        bucket
        for bucket in client.get("/v1/organization/costs", {"start_time": start}).json()["data"]
        if bucket["results"]
    ]
    assert bucket["results"][0]["amount"]["value"] == 3
    lines = client.get("/v1/usage/ledger").json()["data"]
    assert [(line["count"] > 0, line["credit_reason"]) for line in lines] == [
        (False, "attempt_failed"),
        (True, None),
        (True, None),
    ]
    assert lines[0]["cost"]["value"] == -1


@pytest.mark.django_db(transaction=True)
def test_of_many_threads_that_credit_the_same_attempt_one_succeeds() -> None:
    organization = make_organization()
    use_hour(organization, "job_1")
    amounts: list[int] = []

    def credit() -> None:
        try:
            with as_tenant(organization.pk, None), transaction.atomic():
                amounts.append(give_back("job_1"))
        finally:
            connection.close()

    threads = [threading.Thread(target=credit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(amounts) == [0] * 7 + [2 * DOLLAR]
    assert spent_this_month(organization.pk, None) == 0


def test_a_job_that_succeeds_after_a_failed_attempt_costs_only_its_last_attempt(organization: Organization) -> None:
    job = fail(FailureClass.INFRA, organization)
    end_backoff(job)
    held = claim(job)
    age_claim(job, 1800)
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + HOUR)
    job_succeed(claim=held, result={})

    assert cost_of(job.pk) == pytest.approx(DOLLAR, rel=0.01)
