"""A certificate can be verified with the public key. The verification detects every change of the certificate."""

import base64
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from control.core.certificates import canonical, certificate_of, public_key_body
from control.core.settings.config import Config
from slipstream import CertificateError
from slipstream.certificates import verify
from tests.control.workflows.evaluations.evidence import make_evidence

OTHER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # base64 of the bytes 0 to 31
LEAVES = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
STATEMENTS = st.dictionaries(
    st.text(st.characters(codec="ascii")),
    st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=8),
)


def public_key() -> str:
    key: str = public_key_body()["public_key"]
    return key


def round_tripped(certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate after it was written to indented JSON and read again."""
    read: dict[str, Any] = json.loads(json.dumps(certificate, indent=2))
    return read


@given(STATEMENTS)
def test_the_signed_statement_is_returned_unchanged(statement: dict[str, Any]) -> None:
    assert verify(round_tripped(certificate_of(statement)), public_key()) == statement


def leaf_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the keys that lead to each value that is neither an object nor a list."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaf_paths(value[key], (*path, key))
    else:
        yield path


def changed(value: Any) -> Any:
    """Returns a different value of the same type, or 1 for None."""
    if isinstance(value, str):
        return value[:-1] + ("A" if value[-1] != "A" else "B") if value else "x"
    return 1 if value is None else value + 1


CERTIFICATE_PATHS = list(
    leaf_paths({"object": "", "format": "", "statement": make_evidence(), "signature": {"value": "", "key_id": ""}})
)


@pytest.mark.parametrize("path", CERTIFICATE_PATHS, ids=lambda path: ".".join(map(str, path)))
def test_verification_detects_any_single_changed_value(path: tuple[Any, ...]) -> None:
    certificate = round_tripped(certificate_of(make_evidence()))
    parent = certificate
    for key in path[:-1]:
        parent = parent[key]
    if path == ("signature", "value"):
        parent["value"] = "A" * 86 + "=="  # base64 of 64 zero bytes, the length of a signature
    else:
        parent[path[-1]] = changed(parent[path[-1]])

    with pytest.raises(CertificateError):
        verify(certificate, public_key())


def test_verification_detects_added_and_removed_values_and_changed_types() -> None:
    certificate = round_tripped(certificate_of(make_evidence()))
    forgeries: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda forged: forged["statement"].pop("counts"),
        lambda forged: forged["statement"].update(note="trust me"),
        lambda forged: forged.update(note="trust me"),
        lambda forged: forged["statement"]["counts"].update(equal=20.0),
        lambda forged: forged["statement"].update(dtype="\ud800"),
        lambda forged: forged.pop("signature"),
        lambda forged: forged.update(statement=None),
    )
    for forge in forgeries:
        forged = copy.deepcopy(certificate)
        forge(forged)
        with pytest.raises(CertificateError):
            verify(forged, public_key())


def test_a_certificate_signed_with_another_key_is_refused_even_under_the_same_key_id() -> None:
    other = Ed25519PrivateKey.generate()
    certificate = round_tripped(certificate_of(make_evidence()))
    signed = canonical({name: value for name, value in certificate.items() if name != "signature"})
    certificate["signature"]["value"] = base64.b64encode(other.sign(signed)).decode()

    with pytest.raises(CertificateError, match="modified after it was signed"):
        verify(certificate, public_key())
    pem = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(CertificateError, match="not with"):
        verify(certificate, pem)


def test_a_configured_key_is_used_instead_of_the_derived_key(monkeypatch: pytest.MonkeyPatch) -> None:
    derived = public_key_body()
    monkeypatch.setattr(settings, "SLIPSTREAM", Config(certificate_key=SecretStr(OTHER_KEY)))

    assert public_key_body()["key_id"] != derived["key_id"]
    assert verify(certificate_of({"result": "equal"}), public_key()) == {"result": "equal"}


def test_the_signing_key_is_derived_from_the_secret_key(monkeypatch: pytest.MonkeyPatch) -> None:
    derived_before = public_key_body()
    assert public_key_body() == derived_before
    monkeypatch.setattr(settings, "SECRET_KEY", "another")
    assert public_key_body()["key_id"] != derived_before["key_id"]


@pytest.mark.parametrize("key", ["c2hvcnQ=", "not base64!"])
def test_a_key_of_the_wrong_size_is_refused_at_startup(key: str) -> None:
    with pytest.raises(ValueError, match="certificate_key"):
        Config(certificate_key=SecretStr(key))


def test_a_statement_with_a_fraction_is_not_signed() -> None:
    with pytest.raises(ValueError, match="must not have fractions"):
        certificate_of({"counts": {"equal": [1.0]}})


def test_an_invalid_public_key_is_reported() -> None:
    with pytest.raises(CertificateError, match="public key"):
        verify(certificate_of({}), "nonsense")
