"""Queries for datasets."""

from django.db.models import QuerySet

from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.datasets.models import Dataset


def datasets_list(organization: Organization) -> QuerySet[Dataset]:
    return Dataset.objects.filter(visible(organization)).select_related("base_model", "file")


def dataset_get(organization: Organization, dataset_id: str) -> Dataset:
    """Raises: ApiError: 404, also for another organization's dataset."""
    dataset = datasets_list(organization).filter(pk=dataset_id).first()
    if dataset is None:
        raise ApiError(404, f"No such dataset: {dataset_id[:80]}", "dataset_not_found", "dataset_id")
    return dataset
