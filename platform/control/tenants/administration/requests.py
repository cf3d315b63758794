"""Executes validated requests for API keys."""

import datetime as dt

from django.utils import timezone

from control.core.api.errors import ApiError
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.selectors import project_get
from control.tenants.administration.schemas import ApiKeyInput
from control.tenants.administration.services import api_key_create, refuse_wider_scopes
from control.tenants.administration.signals import key_restricting


def create_from(caller: ApiKey, body: ApiKeyInput) -> tuple[ApiKey, str]:
    """Without `scopes`, a key restricted to deployments gets `inference`, any other key the scopes of the caller's key.

    Raises: ApiError: 403, the caller's key lacks a scope; 404, no such project or deployment; 400, `expires_at` is in
        the past; and the errors of `api_key_create`.
    """
    organization = caller.organization
    scopes = body.scopes or (None if body.deployment_ids else caller.scopes)
    if scopes is not None:
        refuse_wider_scopes(granting=caller, scopes=scopes)
    key_restricting.send(ApiKey, organization=organization, deployment_ids=body.deployment_ids or ())
    return api_key_create(
        organization=organization,
        name=body.name,
        expires_at=_future(body.expires_at),
        scopes=scopes,
        project=None if body.project_id is None else project_get(organization, body.project_id),
        deployment_ids=body.deployment_ids,
    )


def _future(moment: int | None) -> dt.datetime | None:
    if moment is None:
        return None
    expires_at = dt.datetime.fromtimestamp(moment, tz=dt.UTC)
    if expires_at <= timezone.now():
        raise ApiError(400, "expires_at must lie in the future.", "invalid_value", "expires_at")
    return expires_at
