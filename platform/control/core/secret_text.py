"""Encrypts short secrets that the service must be able to read again.

Each purpose has a key of its own, which is derived from Django's SECRET_KEY. To change SECRET_KEY, add the old one to
SECRET_KEY_FALLBACKS: any of these keys decrypts.
"""

import base64

from cryptography.fernet import Fernet, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class SecretText:
    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose

    def encrypt(self, text: str) -> str:
        return self._cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted: str) -> str:
        """Raises: cryptography.fernet.InvalidToken: the text was encrypted with a SECRET_KEY that is not known."""
        return self._cipher().decrypt(encrypted.encode()).decode()

    def reencrypt(self, encrypted: str) -> str:
        """Encrypts with the current SECRET_KEY. Raises: cryptography.fernet.InvalidToken: as `decrypt`."""
        return self._cipher().rotate(encrypted.encode()).decode()

    def _cipher(self) -> MultiFernet:
        return MultiFernet([self._fernet(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])

    def _fernet(self, key: str | bytes) -> Fernet:
        derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=self._purpose)
        derived = derivation.derive(key if isinstance(key, bytes) else key.encode())
        return Fernet(base64.urlsafe_b64encode(derived))
