"""Queries for datasets."""

import re

from django.db.models import QuerySet

from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.datasets.models import Dataset

LATEST = "latest"


def datasets_list(organization: Organization, *, name: str | None = None) -> QuerySet[Dataset]:
    datasets = Dataset.objects.filter(visible(organization)).select_related("base_model", "file")
    return datasets if name is None else datasets.filter(name=name)


def dataset_get(organization: Organization, reference: str, *, param: str = "dataset_id") -> Dataset:
    """Returns the dataset with this id, or with this name and version: `name@3` or `name@latest`.

    Raises: ApiError: 404, also for another organization's dataset.
    """
    name, at, version = reference.rpartition("@")
    if not at:
        dataset = datasets_list(organization).filter(pk=reference).first()
    elif version == LATEST:
        dataset = datasets_list(organization, name=name).exclude(name="").order_by("-version").first()
    else:
        # A version has only one spelling (no leading zeros), so that references to datasets can be compared as text.
        is_number = re.fullmatch(r"[1-9][0-9]{0,8}", version) is not None
        named = datasets_list(organization, name=name).exclude(name="")
        dataset = named.filter(version=int(version)).first() if is_number else None
    if dataset is None:
        raise ApiError(404, f"No such dataset: {reference[:80]}", "dataset_not_found", param)
    return dataset
