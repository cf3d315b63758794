"""Signing secrets of webhook endpoints. They are encrypted, not hashed, because signing needs their plain text.

After a change of SECRET_KEY, `manage.py webhook_secrets_reencrypt` encrypts all secrets with the new one.
"""

import base64
import secrets

from control.core.secret_text import SecretText

PREFIX = "whsec_"
NUM_BYTES = 32
_CIPHER = SecretText(b"slipstream webhook secrets")
encrypt, decrypt, reencrypt = _CIPHER.encrypt, _CIPHER.decrypt, _CIPHER.reencrypt


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(NUM_BYTES)).decode()
