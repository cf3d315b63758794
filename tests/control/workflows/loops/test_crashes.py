"""A worker that is killed at any step of a round leaves exactly one round, one pipeline and one rollout."""

from collections.abc import Callable
from typing import Any

import pytest

from control.data.files.models import File
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.loops import rounds, services, state, triggers
from control.workflows.loops.models import LoopRound
from control.workflows.loops.rounds import rounds_reconcile
from control.workflows.loops.selectors import round_fresh
from control.workflows.loops.services import loop_update
from control.workflows.loops.triggers import round_begin, rounds_begin
from control.workflows.pipelines.models import Pipeline
from tests.control.workflows.loops.helpers import (
    advance,
    advance_to,
    begin,
    drop_acceptance,
    make_deployment,
    make_loop,
    pipeline_of,
    row_counts,
)
from tests.control.workflows.pipelines.helpers import end_batch, end_training

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """Ends a call as a kill ends a process: no handler for errors runs."""


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(organization)


def killed_after(module: Any, name: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Makes the call, which is killed when the function `name` of the module has returned."""
    original = getattr(module, name)

    def then_die(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, name, then_die)
        with pytest.raises(Killed):
            call()


def test_a_kill_while_a_round_begins_leaves_no_incomplete_round(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_loop(deployment)
    drop_acceptance(deployment)
    killed_after(triggers, "event_record", monkeypatch, rounds_begin)
    assert not LoopRound.objects.exists()
    rounds_begin()
    rounds_begin()
    assert LoopRound.objects.count() == 1


@pytest.mark.parametrize(
    ("module", "name"),
    [(rounds, "capture_file_store"), (rounds, "create_from"), (state, "event_record"), (rounds, "transition")],
)
def test_a_kill_while_the_pipeline_is_created_leaves_exactly_one_pipeline(
    module: Any, name: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(deployment)
    before = row_counts()
    files = File.objects.count()
    killed_after(module, name, monkeypatch, rounds_reconcile)
    assert row_counts() == before
    assert File.objects.count() == files
    assert advance(made).status == "distilling"
    rounds_reconcile()
    assert Pipeline.objects.count() == 1
    assert row_counts() == {**before, "Pipeline": 1, "Batch": 1, "Job": 1}


@pytest.mark.parametrize(("before", "after"), [("distilling", "training"), ("training", "evaluating")])
def test_a_kill_while_the_round_follows_its_pipeline_repeats_nothing(
    before: str, after: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = advance_to(before, begin(deployment))
    end_stage = {"distilling": end_batch, "training": end_training}[before]
    end_stage(pipeline_of(made))
    counts = row_counts()
    killed_after(state, "event_record", monkeypatch, rounds_reconcile)
    assert round_fresh(made).status == before
    assert advance(made).status == after
    assert row_counts() == counts


@pytest.mark.parametrize(("module", "name"), [(rounds, "rollout_create"), (state, "event_record")])
def test_a_kill_while_the_rollout_is_created_leaves_exactly_one_rollout(
    module: Any, name: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = advance_to("gating", begin(deployment))
    before = row_counts()
    killed_after(module, name, monkeypatch, rounds_reconcile)
    assert row_counts() == before
    assert advance(made).status == "rolling_out"
    rounds_reconcile()
    assert row_counts() == {**before, "Rollout": 1, "Deployment": before["Deployment"] + 1}


def test_a_kill_while_the_switch_stops_a_round_leaves_it_running_or_stops_it_completely(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = advance_to("training", begin(deployment))
    loop = deployment.loop
    killed_after(services, "transition", monkeypatch, lambda: loop_update(loop=loop, enabled=False))
    loop.refresh_from_db()
    assert (loop.enabled, round_fresh(made).status, pipeline_of(made).status) == (True, "training", "training")
    loop_update(loop=loop, enabled=False)
    assert (round_fresh(made).status, pipeline_of(made).status) == ("stopped", "cancelled")


def test_of_two_workers_that_try_to_begin_a_round_one_succeeds(deployment: Deployment) -> None:
    loop = make_loop(deployment)
    drop_acceptance(deployment)
    stale = type(loop).objects.get(pk=loop.pk)
    assert round_begin(loop=loop) is not None
    assert round_begin(loop=stale) is None
    assert LoopRound.objects.count() == 1


def test_a_worker_with_an_old_view_of_the_round_creates_no_second_pipeline(deployment: Deployment) -> None:
    stale = round_fresh(begin(deployment))
    rounds_reconcile()
    before, files = row_counts(), File.objects.count()
    assert not rounds._capture(stale)
    assert (row_counts(), File.objects.count()) == (before, files)


def test_a_worker_with_an_old_view_of_the_round_creates_no_second_rollout(deployment: Deployment) -> None:
    made = advance_to("gating", begin(deployment))
    stale = round_fresh(made)
    rounds_reconcile()
    before = row_counts()
    rounds._gate(stale)
    assert row_counts() == before
    assert round_fresh(made).status == "rolling_out"


def test_the_statuses_of_a_round_are_reported_once(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment))
    for _ in range(3):
        rounds_reconcile()
    types = list(Event.objects.filter(object_id=made.pk).values_list("type", flat=True))
    assert len(types) == len(set(types)) == 6
