"""Offline verification of certificates, which state whether answers with and without a speculator are equal, or why a
rollout ended as it did.

    certificate = json.loads(Path("certificate.json").read_text())
    statement = verify(certificate, Path("slipstream.pem").read_text())

Get the public key once, from a source that you trust. The certificate does not contain the key, because somebody who
forges a certificate could also put another key into it.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from slipstream.errors import CertificateError

FORMAT = "slipstream.equality/1"
ROLLOUT_FORMAT = "slipstream.rollout/1"  # of the certificates in a rollout's `trial` and `watch`
ARCHIVE_FORMAT = "slipstream.archive/1"  # of the manifest of an archive (archives.py)
EQUAL = "equal"


def verify(certificate: Mapping[str, Any], public_key: str | bytes, *, kind: str = FORMAT) -> dict[str, Any]:
    """Return the signed statement. Also check its `result`, because a valid certificate may say that answers differ.

    Args:
        public_key: PEM.
        kind: the expected format.

    Raises: CertificateError: the certificate is not signed with this key, was modified, or has another format.
    """
    key = _key(public_key)
    try:
        signed = {name: value for name, value in certificate.items() if name != "signature"}
        statement, found = signed["statement"], signed["format"]
        algorithm, key_id = certificate["signature"]["algorithm"], certificate["signature"]["key_id"]
        signature = base64.b64decode(certificate["signature"]["value"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"this is not a certificate: {error!r}") from error
    if found != kind or algorithm != "ed25519" or not isinstance(statement, dict):
        raise CertificateError(f"expected {kind!r} signed with ed25519, got {found!r} with {algorithm!r}")
    if key_id != _key_id(key):
        raise CertificateError(f"the certificate was signed with key {key_id}, not with {_key_id(key)}")
    try:
        key.verify(signature, _canonical(signed))
    except (InvalidSignature, ValueError):
        raise CertificateError("the certificate was modified after it was signed") from None
    return statement


def _key(pem: str | bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem.encode() if isinstance(pem, str) else pem)
    except ValueError as error:
        raise CertificateError(f"the public key cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError(f"the public key must be Ed25519, got {type(key).__name__}")
    return key


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def _canonical(value: Mapping[str, Any]) -> bytes:
    """Serialize according to RFC 8785, except floats, which certificates do not contain. Raises: ValueError."""
    if any(isinstance(leaf, float) for leaf in _leaves(value)):
        raise ValueError("a certificate cannot contain a float")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        yield value
        return
    for item in value:
        yield from _leaves(item)
