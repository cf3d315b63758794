"""Refuses a speculator that does not fit a model."""

from control.core.api.errors import ApiError
from control.models.catalog.models import BaseModel, Speculator
from workers.model_folders import changed_texts


def fit_check(speculator: Speculator, base_model: BaseModel, *, param: str = "speculator_id") -> None:
    """Raises: ApiError: 409, the speculator is not ready, or was trained for another revision, tokenizer or chat
    template of the model."""
    if speculator.status != Speculator.Status.READY:
        message = f"Speculator {speculator.id} must be ready; it is {speculator.status}."
        raise ApiError(409, message, "speculator_not_ready", param)
    if speculator.target_revision != base_model.revision:
        message = (
            f"Speculator {speculator.id} was trained for revision {speculator.target_revision[:12]} of its model, "
            f"but {base_model.name!r} is revision {base_model.revision[:12]}."
        )
        raise ApiError(409, message, "speculator_mismatch", param)
    if changed := changed_texts(speculator.target_texts, base_model.texts):
        message = f"Speculator {speculator.id} was trained with another {changed} than {base_model.name!r} has now."
        raise ApiError(409, message, "speculator_mismatch", param)
