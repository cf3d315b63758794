"""Chooses an engine's drafter, and refuses drafting options that contradict the speculator or the model."""

from control.core.api.errors import ApiError
from control.models.catalog.drafters import drafter_of
from control.models.catalog.models import BaseModel, Speculator
from control.models.engines.schemas import EngineOptions

_NATIVE_MTP_TYPES = ("deepseek_v3",)


def drafter_name(options: EngineOptions, speculator: Speculator | None) -> str | None:
    """Returns the engine's drafter; None: the options leave it open, and there is no speculator."""
    return options.drafting if speculator is None else drafter_of(speculator)


def drafting_check(options: EngineOptions, *, base_model: BaseModel | None, has_speculator: bool) -> None:
    """Raises: ApiError: 400, the options contradict each other, or do not fit the speculator or the model."""
    drafting, param = options.drafting, "engine.drafting"
    if drafting == "speculator" and not has_speculator:
        raise ApiError(400, f"{param} is 'speculator', but there is no speculator.", "speculator_required", param)
    if has_speculator and drafting not in (None, "speculator"):
        message = f"{param} must be null or 'speculator' with a speculator, got {drafting!r}."
        raise ApiError(400, message, "drafting_conflict", param)
    if drafting == "none" and options.draft_budget:
        message = f"engine.draft_budget has no effect if {param} is 'none', got {options.draft_budget}."
        raise ApiError(400, message, "drafting_conflict", "engine.draft_budget")
    model_type = "" if base_model is None else base_model.model_type
    if drafting == "native_mtp" and model_type and model_type not in _NATIVE_MTP_TYPES:
        message = f"{param} can be 'native_mtp' only for models of type {', '.join(_NATIVE_MTP_TYPES)}, which have a "
        message += f"module for it, got {model_type!r}."
        raise ApiError(400, message, "drafting_not_supported", param)
