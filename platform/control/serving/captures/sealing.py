"""Encrypts captured requests with AES-256-GCM. Each organization has its own key.

The keys lie in the database, encrypted with a key that is derived from Django's SECRET_KEY. A copy of the database
alone therefore shows no request. The ciphertext authenticates the deployment's id, so a request that is moved to
another deployment cannot be decrypted. After a change of SECRET_KEY, `manage.py capture_keys_reencrypt` encrypts all
keys anew.
"""

import base64
import json
import secrets
from typing import Any, Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from control.core.secret_text import SecretText
from control.serving.captures.models import CaptureKey

_NONCE_BYTES = 12
_CIPHER = SecretText(b"slipstream capture keys")


class Sealer:
    """Encrypts and decrypts the requests of one organization."""

    def __init__(self, encrypted_key: str) -> None:
        self._cipher = AESGCM(base64.b64decode(_CIPHER.decrypt(encrypted_key)))

    @classmethod
    def of(cls, organization_id: str) -> Self:
        """Returns the sealer of an organization. Effects: creates the organization's key if it has none."""
        row, _ = CaptureKey.objects.get_or_create(organization_id=organization_id, defaults={"encrypted": new_key()})
        return cls(row.encrypted)

    def seal(self, body: dict[str, Any], *, deployment_id: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, json.dumps(body).encode(), deployment_id.encode())

    def open(self, sealed: bytes, *, deployment_id: str) -> dict[str, Any]:
        """Decrypts a request.

        Raises: cryptography.exceptions.InvalidTag: the bytes were changed, or belong to another deployment.
        """
        nonce, encrypted = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        body: dict[str, Any] = json.loads(self._cipher.decrypt(nonce, encrypted, deployment_id.encode()))
        return body


def capture_keys_reencrypt() -> int:
    """Encrypts all keys with the current SECRET_KEY. Returns: their number."""
    keys = list(CaptureKey.objects.all())
    for key in keys:
        CaptureKey.objects.filter(pk=key.pk).update(encrypted=_CIPHER.reencrypt(key.encrypted))
    return len(keys)


def new_key() -> str:
    """Returns a random key, encrypted."""
    return _CIPHER.encrypt(base64.b64encode(AESGCM.generate_key(bit_length=256)).decode())
