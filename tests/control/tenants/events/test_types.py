from control.serving.acceptance.detector import Change
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.events.types import EVENT_TYPES
from control.workflows.batches.models import Batch
from control.workflows.loops.models import LoopRound
from control.workflows.pipelines.models import Pipeline


def suffixes_of(prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in EVENT_TYPES if name.startswith(prefix)}


def test_every_status_that_a_transition_leads_to_has_an_event_type() -> None:
    # No transition leads to the first status of a batch or rollout. A paused batch keeps its status.
    assert suffixes_of("batch.") - {"paused", "resumed"} == set(Batch.Status) - {Batch.Status.VALIDATING}
    assert suffixes_of("pipeline.") == set(Pipeline.Status)
    assert suffixes_of("deployment.") == set(Deployment.State)
    assert suffixes_of("loop.round.") == set(LoopRound.Status)
    assert suffixes_of("acceptance.") == set(Change)
    assert suffixes_of("rollout.") == set(Rollout.Status) - {Rollout.Status.STARTING}
