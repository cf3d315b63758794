"""Signing secrets of webhook endpoints. They are encrypted, not hashed, because signing needs their plain text.

The encryption key is derived from Django's SECRET_KEY. To change SECRET_KEY, add the old one to SECRET_KEY_FALLBACKS:
any of these keys decrypts, and `manage.py webhook_secrets_reencrypt` encrypts all secrets with the new one.
"""

import base64
import secrets

from cryptography.fernet import Fernet, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PREFIX = "whsec_"
NUM_BYTES = 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(NUM_BYTES)).decode()


def encrypt(secret: str) -> str:
    return _cipher().encrypt(secret.encode()).decode()


def decrypt(encrypted: str) -> str:
    """Raises: cryptography.fernet.InvalidToken: the secret was encrypted with a SECRET_KEY that is not known."""
    return _cipher().decrypt(encrypted.encode()).decode()


def reencrypt(encrypted: str) -> str:
    """Encrypts with the current SECRET_KEY. Raises: cryptography.fernet.InvalidToken: as `decrypt`."""
    return _cipher().rotate(encrypted.encode()).decode()


def _cipher() -> MultiFernet:
    return MultiFernet([_fernet(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _fernet(key: str | bytes) -> Fernet:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"slipstream webhook secrets")
    derived = derivation.derive(key if isinstance(key, bytes) else key.encode())
    return Fernet(base64.urlsafe_b64encode(derived))
