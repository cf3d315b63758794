"""Readers of organizations and keys."""

import hmac

from django.utils import timezone

from control.accounts.keys import MalformedKey, parse_token
from control.accounts.models import ApiKey
from control.accounts.services import api_key_touch
from control.api.errors import ApiError


def api_key_authenticate(token: str) -> ApiKey:
    """The key, with its organization loaded. Notes the use (at most once a minute).

    Raises: ApiError: 401. One message for every cause, so that a caller learns nothing about keys that exist.
    """
    refused = ApiError(401, "Incorrect API key provided.", "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    try:
        given = parse_token(token)
    except MalformedKey:
        raise refused from None
    key = ApiKey.objects.select_related("organization").filter(pk=given.id).first()
    # compare_digest also against nothing: an unknown id takes as long as a wrong secret
    stored = key.secret_sha256 if key else "0" * 64
    if not hmac.compare_digest(given.secret_sha256, stored) or key is None:
        raise refused
    now = timezone.now()
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
        raise refused
    api_key_touch(key=key, now=now)
    return key
