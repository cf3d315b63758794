"""Queries for base models and speculators."""

from django.db.models import Q, QuerySet

from control.core.api.errors import ApiError
from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible


def base_models_list(organization: Organization) -> QuerySet[BaseModel]:
    """Returns the organization's ready models, and the shared models except those with the name of a ready model."""
    return registered_models_list(organization).filter(status=BaseModel.Status.READY)


def registered_models_list(organization: Organization) -> QuerySet[BaseModel]:
    """Returns the models of `base_models_list` and the organization's models that are being checked or were refused."""
    own = visible(organization, also_of_no_project=True)
    ready = BaseModel.objects.filter(own, status=BaseModel.Status.READY)
    return BaseModel.objects.filter(own | Q(organization=None) & ~Q(name__in=ready.values("name")))


def base_model_get(organization: Organization, name: str) -> BaseModel:
    """Raises: ApiError: 404 with code model_not_found."""
    model = base_models_list(organization).filter(name=name).first()
    if model is None:
        raise ApiError(
            404,
            f"The model {name[:120]!r} does not exist or you do not have access to it.",
            "model_not_found",
            "model",
        )
    return model


def base_model_by_id(organization: Organization, model_id: str) -> BaseModel:
    """Raises: ApiError: 404, also if the model belongs to another organization."""
    model = registered_models_list(organization).filter(pk=model_id).first()
    if model is None:
        raise ApiError(404, f"No such base model: {model_id[:80]!r}.", "base_model_not_found", "model_id")
    return model


def speculators_list(organization: Organization) -> QuerySet[Speculator]:
    existing = Speculator.objects.exclude(status=Speculator.Status.DELETED)
    return existing.filter(visible(organization)).select_related("base_model")


def speculator_get(organization: Organization, speculator_id: str, *, param: str = "speculator_id") -> Speculator:
    """Raises: ApiError: 404, also for another organization's speculator."""
    speculator = speculators_list(organization).filter(pk=speculator_id).first()
    if speculator is None:
        raise ApiError(404, f"No such speculator: {speculator_id[:80]}", "speculator_not_found", param)
    return speculator
