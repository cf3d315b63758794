"""Resolves the ids of speculators in requests, which may name an organization's speculator or a base speculator.

When an organization first uses a base speculator, a `Speculator` row is created for this organization. Deployments,
evaluations, rollouts and trainings refer to this row, which has no files and no report of its own.
"""

from django.db import transaction

from control.core.ids import BASE_SPECULATOR
from control.models.base_speculators.selectors import base_speculator_get
from control.models.catalog.models import BaseSpeculator, Speculator
from control.models.catalog.selectors import speculator_get, speculators_list
from control.models.catalog.services import speculator_next_version
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited


def speculator_resolve(organization: Organization, speculator_id: str) -> Speculator:
    """Returns the organization's speculator with this id.

    If the id names a base speculator, returns the row for the organization's use of it. The first request creates it.

    Raises: ApiError: 404, the speculator does not exist, belongs to another organization, or is a withdrawn base
        speculator.
    """
    if not speculator_id.startswith(BASE_SPECULATOR):
        return speculator_get(organization, speculator_id)
    offered = base_speculator_get(speculator_id)
    return _use_of(organization, offered) or base_speculator_use(organization=organization, base_speculator=offered)


def speculator_preview(organization: Organization, speculator_id: str, *, param: str = "speculator_id") -> Speculator:
    """Returns what `speculator_resolve` would return, without saving it. Raises: as `speculator_resolve`."""
    if not speculator_id.startswith(BASE_SPECULATOR):
        return speculator_get(organization, speculator_id, param=param)
    offered = base_speculator_get(speculator_id, param=param)
    return _use_of(organization, offered) or _new_use(organization, offered)


@audited("speculator.use", records_itself=True)
@transaction.atomic  # not `change`: the request's transaction must not begin before the request has read its files
def base_speculator_use(*, organization: Organization, base_speculator: BaseSpeculator) -> Speculator:
    """Creates the row for an organization's use of a base speculator, unless a concurrent request has created it."""
    made = _new_use(organization, base_speculator)
    made.version = speculator_next_version(organization, made.name)  # locks the organization
    if (existing := _use_of(organization, base_speculator)) is not None:
        return existing
    made.save()
    audit_record("speculator.use", made)
    return made


def _use_of(organization: Organization, base_speculator: BaseSpeculator) -> Speculator | None:
    return speculators_list(organization).filter(base_speculator=base_speculator).first()


def _new_use(organization: Organization, base: BaseSpeculator) -> Speculator:
    made = Speculator(
        organization=organization,
        base_model=base.base_model,
        base_speculator=base,
        name=f"base/{base.name}-v{base.version}",  # names that organizations choose have no slash
        kind=base.kind,
        status=Speculator.Status.READY,
        target_revision=base.target_revision,
        target_texts=base.target_texts,
        training={"method": base.kind},
    )
    # Earlier releases read this prefix. When the speculator is deleted, they delete the objects below it.
    made.storage_prefix = f"{organization.pk}/speculators/{made.pk}"
    return made
