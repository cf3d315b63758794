"""A round passes from a drop of the acceptance length to a promoted speculator, or ends earlier for a stated reason."""

import datetime as dt
import json
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.catalog.models import Speculator
from control.queue.devices.services import devices_register
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.services import request_capture
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_delete, deployment_stop, deployment_update
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollout_cancel
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.loops import rounds
from control.workflows.loops.models import LoopRound
from control.workflows.loops.rounds import MAX_WAIT
from control.workflows.loops.triggers import round_begin
from control.workflows.pipelines.services import pipeline_cancel
from control.workflows.pipelines.stages import pipelines_reconcile
from tests.control.queue.devices.helpers import gpu, state
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.loops.helpers import (
    advance,
    advance_to,
    begin,
    capture_requests,
    decide_rollout,
    make_deployment,
    make_loop,
    pipeline_of,
    report,
    row_counts,
)
from tests.control.workflows.pipelines.helpers import end_batch, end_evaluation, end_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(organization)


def test_a_drop_leads_to_a_promoted_speculator_that_continues_from_the_previous_speculator(
    deployment: Deployment,
) -> None:
    old = deployment.speculator
    assert old is not None
    made = begin(
        deployment, recipe={"min_rows": 20, "held_out": 5, "max_seconds": 60, "hyperparameters": {"epochs": 2}}
    )
    assert (made.status, made.trigger) == ("capturing", "acceptance_drop")
    made = advance_to("distilling", made)
    pipeline = pipeline_of(made)
    assert (pipeline.name, pipeline.deploy, pipeline.base_model) == ("support", False, deployment.base_model)
    assert pipeline.held_out_file.size_bytes > 0
    end_batch(pipeline)
    made = advance(made)
    job = pipeline_of(made).training_job
    assert job is not None
    assert (job.params["method"], job.params["initial_speculator_id"]) == ("medusa", old.pk)
    assert job.params["hyperparameters"] == {"epochs": 2, "max_seconds": 60.0}
    made = advance_to("rolling_out", LoopRound.objects.get(pk=made.pk), new=2.4, old=1.8)
    pipeline, rollout = pipeline_of(made), Rollout.objects.get()
    assert pipeline.evaluation_job is not None
    assert pipeline.evaluation_job.params["compare_with"] == [old.pk]
    assert made.figures == {
        "concurrency": 1,
        "new": {"acceptance_length": 2.4, "tokens_per_second": 30.0},
        "old": {"acceptance_length": 1.8, "tokens_per_second": 25.0},
    }
    assert (rollout.speculator_id, rollout.previous_id) == (pipeline.speculator_id, old.pk)
    assert (rollout.share_percent, rollout.min_requests) == (20, 10)
    decide_rollout(made, is_better=True)
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("promoted", "accepted")
    assert made.finished_at is not None
    deployment.refresh_from_db()
    assert deployment.speculator_id == pipeline.speculator_id
    passed = ["capturing", "distilling", "training", "evaluating", "gating", "rolling_out", "promoted"]
    assert [step["status"] for step in made.timeline] == passed
    events = Event.objects.filter(object_id=made.pk).order_by("number")
    assert [event.type for event in events] == [f"loop.round.{status}" for status in passed]


@pytest.mark.parametrize("status", ["distilling", "training", "evaluating", "rolling_out"])
def test_advancing_again_starts_nothing_twice(status: str, deployment: Deployment) -> None:
    made = advance_to(status, begin(deployment))
    assert made.status == status
    before = row_counts()
    for _ in range(3):
        pipelines_reconcile()
        assert advance(made).status == status
    assert row_counts() == before


def test_a_speculator_that_gains_too_little_is_not_rolled_out(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment, gate={"min_acceptance_gain": 0.1}), new=1.9, old=1.8)
    assert made.status == "rejected"
    assert made.reason is not None
    assert made.reason["code"] == "gain_too_small"
    assert "At least 1.980 is required" in made.reason["message"]
    assert made.figures is not None
    assert made.figures["old"]["acceptance_length"] == 1.8
    assert not Rollout.objects.exists()


def test_a_speculator_that_the_gate_of_the_pipeline_refuses_is_not_rolled_out(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment, gate={"min_speedup": 3.0}))
    assert (made.status, made.reason and made.reason["code"]) == ("rejected", "gate_rejected")
    assert made.figures is not None
    assert not Rollout.objects.exists()


def test_a_rollout_that_is_rolled_back_rolls_the_round_back(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment))
    decide_rollout(made, is_better=False)
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("rolled_back", "acceptance_dropped")


def test_a_rollout_that_the_customer_cancels_rolls_the_round_back(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment))
    rollout_cancel(rollout=Rollout.objects.get())
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("rolled_back", "cancelled")


def test_a_failed_stage_fails_the_round_with_its_reason(deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment))
    job = pipeline_of(made).training_job
    end_job(pipeline_of(made), job, "failed", error={"code": "out_of_memory", "message": "No memory."})
    made = advance(made)
    assert (made.status, made.reason) == ("failed", {"code": "out_of_memory", "message": "No memory."})


def test_a_cancelled_pipeline_stops_the_round(deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment))
    pipeline_cancel(pipeline=pipeline_of(made))
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "pipeline_cancelled")


def test_a_round_waits_for_requests_captured_since_the_drop_began(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(deployment)
    LoopRound.objects.filter(pk=made.pk).update(data_since=timezone.now())
    assert advance(made).status == "capturing"
    capture_requests(deployment, 19, text="new domain")
    assert advance(made).status == "capturing"
    capture_requests(deployment, 1, text="new domain")
    assert advance(made).status == "distilling"


def test_a_round_fails_if_too_few_requests_are_captured_in_time(deployment: Deployment) -> None:
    made = begin(deployment, recipe={"max_capture_seconds": 60})
    LoopRound.objects.filter(pk=made.pk).update(
        data_since=timezone.now(), changed_at=timezone.now() - dt.timedelta(seconds=61)
    )
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("failed", "too_few_requests")


def test_traffic_that_repeats_itself_lets_a_round_wait_for_different_requests(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    CapturedRequest.objects.all().delete()
    for _ in range(30):
        body = {"messages": [{"role": "user", "content": "the same"}]}
        assert request_capture(deployment_id=deployment.pk, endpoint="/v1/chat/completions", body=body)
    made = advance(begin(deployment))
    assert (made.status, made.reason) == ("capturing", None)
    capture_requests(deployment, 20, text="different")
    assert advance(made).status == "capturing", "the file is not written again at once"

    monkeypatch.setattr(rounds, "timezone", _Later)
    assert advance(made).status == "distilling"
    assert File.objects.filter(made_from=deployment.pk).count() == 1


def test_a_round_whose_requests_repeat_for_too_long_fails_as_one_without_requests(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": [{"role": "user", "content": "the same"}]}
    CapturedRequest.objects.all().delete()
    for _ in range(30):
        assert request_capture(deployment_id=deployment.pk, endpoint="/v1/chat/completions", body=body)
    made = advance(begin(deployment, recipe={"max_capture_seconds": 60}))
    assert made.status == "capturing"

    LoopRound.objects.filter(pk=made.pk).update(changed_at=timezone.now() - dt.timedelta(seconds=61))
    made = advance(made)

    assert (made.status, made.reason and made.reason["code"]) == ("failed", "too_few_requests")


class _Later:
    """The clock, after `TRY_AGAIN` has passed."""

    @staticmethod
    def now() -> dt.datetime:
        return timezone.now() + rounds.TRY_AGAIN


def test_a_round_uses_only_the_newest_requests(deployment: Deployment) -> None:
    pipeline = pipeline_of(advance(begin(deployment, limits={"max_rows": 22})))
    newest = list(CapturedRequest.objects.order_by("-pk").values_list("pk", flat=True)[:22])
    prompts, held_out = (captured_ids(file) for file in (pipeline.prompts_file, pipeline.held_out_file))
    assert (len(prompts), len(held_out)) == (22 - 5, 5)
    assert prompts | held_out == {f"captured-{pk}" for pk in newest}


def captured_ids(file: File) -> set[str]:
    """Returns the ids of the file's rows. A blank line stands for each row that is in the other file of the split."""
    with get_storage().open(file.storage_key) as source:
        return {json.loads(line)["custom_id"] for line in source if line.strip()}


def test_a_round_uses_the_hardware_of_the_deployment_and_waits_while_this_hardware_is_missing(
    deployment: Deployment, settings: Settings
) -> None:
    Deployment.objects.update(hardware="L4")
    made = begin(deployment)
    assert advance(made).status == "capturing"
    state(settings, gpu(24, model="L4"))
    devices_register()
    made = advance(made)
    assert (made.status, pipeline_of(made).hardware) == ("distilling", "L4")


def test_a_round_waits_a_day_for_a_place_in_the_queue_and_writes_no_file_meanwhile(
    deployment: Deployment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_hour = dt.timedelta(hours=1)
    made = begin(deployment, recipe={"max_capture_seconds": 3600})
    settings.SLIPSTREAM = get_config().model_copy(update={"max_queued_jobs": 0})
    monkeypatch.setattr(rounds, "capture_file_store", None)
    LoopRound.objects.filter(pk=made.pk).update(changed_at=timezone.now() - MAX_WAIT - capture_hour / 2)
    assert advance(made).status == "capturing"
    LoopRound.objects.filter(pk=made.pk).update(changed_at=timezone.now() - MAX_WAIT - capture_hour * 2)
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("failed", "queued_jobs_quota_exceeded")


def test_a_round_without_a_capture_fails_in_the_end(deployment: Deployment) -> None:
    made = begin(deployment)
    Capture.objects.all().delete()
    LoopRound.objects.filter(pk=made.pk).update(changed_at=timezone.now() - dt.timedelta(days=8))
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("failed", "too_few_requests")


@pytest.mark.parametrize("end", [deployment_stop, deployment_delete])
def test_a_round_stops_with_its_deployment(end: Any, deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment))
    end(deployment=deployment)
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "deployment_stopped")
    assert pipeline_of(made).status == "cancelled"


def test_a_speculator_that_the_customer_sets_during_a_round_is_kept(deployment: Deployment) -> None:
    made = advance_to("evaluating", begin(deployment))
    other = make_speculator(deployment.base_model, deployment.organization, name="by hand")
    deployment_update(deployment=deployment, speculator=other)
    made = advance_to_end_of_evaluation(made)
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "superseded")
    assert not Rollout.objects.exists()


def advance_to_end_of_evaluation(made: LoopRound) -> LoopRound:
    end_evaluation(pipeline_of(made), **report(2.4, 1.8, made))
    return advance(made)


def test_a_round_waits_while_the_deployment_is_not_ready_and_fails_after_a_day(deployment: Deployment) -> None:
    made = advance_to("evaluating", begin(deployment))
    Deployment.objects.update(state=Deployment.State.PROVISIONING)
    made = advance_to_end_of_evaluation(made)
    assert made.status == "gating"
    LoopRound.objects.filter(pk=made.pk).update(changed_at=timezone.now() - MAX_WAIT - dt.timedelta(seconds=1))
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("failed", "deployment_not_ready")


def test_another_kind_is_trained_from_the_start(deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment, recipe={"kind": "eagle3"}))
    job = pipeline_of(made).training_job
    assert job is not None
    assert (job.params["method"], job.params["initial_speculator_id"]) == ("eagle3", None)
    assert pipeline_of(made).evaluation["compare_with"] == [deployment.speculator_id]


def test_a_deployment_without_a_speculator_gets_its_first_one(deployment: Deployment) -> None:
    Deployment.objects.update(speculator=None)
    deployment.refresh_from_db()
    loop = make_loop(deployment, recipe={"kind": "medusa"}, triggers={"new_requests": 20})
    capture_requests(deployment, 20)
    made = round_begin(loop=loop)
    assert made is not None
    made = advance_to("evaluating", made)
    end_evaluation(pipeline_of(made))
    made = advance(made)
    assert (made.status, made.figures and made.figures["old"]) == ("rolling_out", None)
    assert Rollout.objects.get().previous_id is None
    assert Speculator.objects.filter(name="support", version=2).exists()


def test_a_report_without_the_speculator_that_serves_fails_the_round(deployment: Deployment) -> None:
    """During an upgrade, a worker of an earlier release may run the evaluation. It does not compare speculators."""
    made = advance_to("evaluating", begin(deployment))
    end_evaluation(pipeline_of(made))
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("failed", "not_compared")
    assert not Rollout.objects.exists()
