"""Example objects and request bodies of evaluations, for the tests that cover all routes."""

from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_finish, evaluation_start
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def evaluation(world: World) -> Evaluation:
    """An evaluation in which all outputs were equal."""
    made = evaluation_start(
        speculator=world.speculator, prompts=world.file, rows_key="rows", settings={}, memory_needed={}
    )
    evaluation_finish(evaluation=made, report={}, evidence=make_evidence(), plots_prefix="e")
    made.refresh_from_db()
    return made


IDS: Ids = {
    "evaluation_id": lambda world: world.evaluation.pk,
}
BODIES: Bodies = {
    "POST /v1/evaluations": Body(
        lambda world: {"speculator_id": world.speculator.pk, "prompts_file": world.file.pk},
        {"speculator_id": "speculator_id", "prompts_file": "file_id", "compare_with.0": "speculator_id"},
    ),
    "POST /v1/evaluations/{evaluation_id}/cancel": NO_BODY,
}
