"""Signs certificates with an Ed25519 key. A certificate says whether a speculator left a model's answers unchanged, why
a rollout ended as it did, or which files an archive has.

    {"object": "certificate", "format": ..., "statement": {...}, "signature": {"algorithm", "key_id", "value"}}

The signature covers the certificate without `signature`, in the canonical form of RFC 8785. A statement has no
fractions, because JSON libraries print them differently. `slipstream.certificates` verifies a certificate without
calling this service.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

from control.core.settings.config import get_config

FORMAT = "slipstream.equality/1"
ROLLOUT_FORMAT = "slipstream.rollout/1"
ARCHIVE_FORMAT = "slipstream.archive/1"  # of the manifest of a speculator's archive
ALGORITHM = "ed25519"
_SEED_BYTES = 32


def certificate_of(statement: Mapping[str, Any], *, kind: str = FORMAT) -> dict[str, Any]:
    """Signs the statement. Args: kind: the certificate's format. Raises: ValueError: the statement has a fraction."""
    key = _signing_key()
    signed = {"object": "certificate", "format": kind, "statement": dict(statement)}
    value = base64.b64encode(key.sign(canonical(signed))).decode()
    return {**signed, "signature": {"algorithm": ALGORITHM, "key_id": _key_id(key), "value": value}}


def canonical(value: Mapping[str, Any]) -> bytes:
    """The canonical form of RFC 8785. Raises: ValueError: the value has a fraction."""
    _refuse_fractions(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def public_key_body() -> dict[str, Any]:
    key = _signing_key()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    return {"object": "public_key", "algorithm": ALGORITHM, "key_id": _key_id(key), "public_key": pem}


def _signing_key() -> Ed25519PrivateKey:
    """Returns the configured key, or else one derived from Django's SECRET_KEY, which is the same on all machines."""
    configured = get_config().certificate_key
    if configured is not None:
        return Ed25519PrivateKey.from_private_bytes(base64.b64decode(configured.get_secret_value(), validate=True))
    derive = HKDF(SHA256(), length=_SEED_BYTES, salt=None, info=FORMAT.encode())
    return Ed25519PrivateKey.from_private_bytes(derive.derive(settings.SECRET_KEY.encode()))


def _key_id(key: Ed25519PrivateKey) -> str:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _refuse_fractions(value: object) -> None:
    if isinstance(value, float):
        raise ValueError(f"a certificate must not have fractions, got {value!r}")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _refuse_fractions(item)
