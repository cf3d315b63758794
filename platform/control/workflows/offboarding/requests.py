"""Declares the console's form with which an owner deletes an organization."""

from control.core.api.forms import ConsoleForm
from control.workflows.offboarding.schemas import OrganizationDeletionInput
from control.workflows.offboarding.services import organization_deletion_request

DELETE_ORGANIZATION = ConsoleForm(
    title="Delete the organization",
    request=OrganizationDeletionInput,
    run=lambda organization, body: organization_deletion_request(organization=organization, name=body.name),
)
