"""Requests and responses of exports and deletions of organizations."""

from typing import Annotated, Literal, Self

from pydantic import Field

from control.core.api.schemas import OneOf, RequestModel, ResponseModel, Text, Unix
from control.tenants.accounts.models import Organization
from control.workflows.offboarding.models import OrganizationExport


class OrganizationExportObject(ResponseModel):
    id: str
    object: Literal["organization_export"] = "organization_export"
    status: Annotated[str, OneOf(OrganizationExport.Status)]
    size_bytes: int = Field(description="The number of bytes of the archive that have been written.")
    created_at: Unix
    finished_at: Unix | None
    expires_at: Unix = Field(description="When the archive is deleted, even if it is incomplete.")

    @classmethod
    def of(cls, export: OrganizationExport) -> Self:
        return cls.from_row(export)


class OrganizationDeletionInput(RequestModel):
    name: Annotated[str, Text(120)] = Field(description="The exact name of the organization, as a confirmation.")


class OrganizationDeletionObject(ResponseModel):
    organization_id: str
    object: Literal["organization_deletion"] = "organization_deletion"
    requested_at: Unix
    erase_after: Unix = Field(
        description="When everything is deleted. Until then, an owner can cancel the deletion in the console."
    )

    @classmethod
    def of(cls, organization: Organization) -> Self:
        return cls.from_row(
            organization, organization_id=organization.pk, requested_at=organization.deletion_requested_at
        )
