"""Handles requests that set or change loops, from the API and the console."""

from typing import Any

from control.billing.spending.schemas import nanousd
from control.core.api.errors import ApiError
from control.core.api.forms import ConsoleForm, name_choices
from control.models.catalog.hyperparameters import hyperparameters_check
from control.models.catalog.models import Speculator
from control.models.engines.schemas import MAX_FURTHER_ARMS
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get
from control.workflows.loops.models import Loop
from control.workflows.loops.schemas import LoopGate, LoopInput, LoopLimits, LoopRecipe, LoopUpdateInput
from control.workflows.loops.services import loop_set, loop_update
from workers.kinds import OUTPUT_CHANGING_KINDS, REQUESTED_KINDS

_NAMES = ("enabled", "triggers", "limits", "recipe", "gate", "rollout")


def set_from(deployment: Deployment, body: LoopInput) -> Loop:
    """Raises: ApiError: 400, the settings contradict each other, or do not fit the deployment; or as `loop_set`."""
    _check(deployment, body.recipe, body.gate, body.limits)
    return loop_set(deployment=deployment, **_columns(body, _NAMES))


def update_from(loop: Loop, body: LoopUpdateInput) -> Loop:
    """Raises: ApiError: 400, `body` is empty, or as `set_from`."""
    given = [name for name in _NAMES if name in body.model_fields_set]
    if not given:
        message = f"enabled: give at least one of {', '.join(_NAMES)}"
        raise ApiError(400, message, "missing_required_parameter", "enabled")
    _check(
        loop.deployment,
        body.recipe if "recipe" in given else LoopRecipe.model_validate(loop.recipe),
        body.gate if "gate" in given else LoopGate.model_validate(loop.gate),
        body.limits if "limits" in given else LoopLimits.model_validate(loop.limits),
    )
    return loop_update(loop=loop, **_columns(body, given))


def _columns(body: LoopInput, names: list[str] | tuple[str, ...]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(body, name) for name in names}
    for name, value in columns.items():
        if name != "enabled":
            columns[name] = value.model_dump(exclude={"monthly_budget"})
    if "rollout" in columns:
        columns["rollout"] = body.rollout.stored()
    if "limits" in columns:
        budget = body.limits.monthly_budget
        columns["budget_nanousd"] = None if budget is None else nanousd(budget)
    return columns


def training_of(recipe: LoopRecipe, serving: Speculator | None) -> dict[str, Any]:
    """Returns `training` of a round's pipeline, without the speculator that it continues from.

    Raises: ApiError: 400, the kind is missing, speculators of the kind change answers, or a hyperparameter is invalid.
    """
    kind = recipe.kind or (None if serving is None else serving.kind)
    if kind is None:
        message = "recipe.kind: name a kind, because the deployment serves without a speculator"
        raise ApiError(400, message, "missing_required_parameter", "recipe.kind")
    adapted = [each for each in (kind, None if serving is None else serving.kind) if each in OUTPUT_CHANGING_KINDS]
    if adapted:
        message = f"recipe.kind: a {adapted[0]} changes the answers of the deployment, so no loop trains or replaces it"
        raise ApiError(400, message, "output_change", "recipe.kind")
    limit = {} if recipe.max_seconds is None else {"max_seconds": recipe.max_seconds}
    values = {**recipe.hyperparameters, **limit}
    hyperparameters_check(kind, values, param="recipe.hyperparameters", kind_param="recipe.kind")
    return {"kind": kind, "seed": recipe.seed, **values}


def _check(deployment: Deployment, recipe: LoopRecipe, gate: LoopGate, limits: LoopLimits) -> None:
    training_of(recipe, deployment.speculator)
    if recipe.min_rows > limits.max_rows:
        message = f"recipe.min_rows must be at most limits.max_rows ({limits.max_rows}), got {recipe.min_rows}"
        raise ApiError(400, message, "invalid_value", "recipe.min_rows")
    if recipe.held_out is not None and recipe.held_out >= recipe.min_rows:
        message = f"recipe.held_out must be less than recipe.min_rows ({recipe.min_rows}), got {recipe.held_out}"
        raise ApiError(400, message, "invalid_value", "recipe.held_out")
    evaluated = recipe.evaluation.concurrencies
    if gate.concurrency is not None and gate.concurrency not in evaluated:
        message = f"gate.concurrency must be one of recipe.evaluation.concurrencies {evaluated}, got {gate.concurrency}"
        raise ApiError(400, message, "invalid_value", "gate.concurrency")
    if len(recipe.evaluation.compare_with) >= MAX_FURTHER_ARMS:
        param = "recipe.evaluation.compare_with"
        message = f"{param} may name {MAX_FURTHER_ARMS - 1} arms: the speculator that serves is always compared"
        raise ApiError(400, message, "invalid_value", param)


SET_LOOP = ConsoleForm(
    title="Retraining loop",
    request=LoopInput,
    run=lambda row, body: set_from(deployment_get(row.organization, row.pk), body),
    choices=lambda organization: {"recipe.kind": name_choices(REQUESTED_KINDS)},
)
