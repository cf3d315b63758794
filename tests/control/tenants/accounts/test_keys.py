"""The format of API keys, and the keys with which a request is refused."""

import datetime as dt
import string

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from control.core.api.errors import ApiError
from control.tenants.accounts.keys import ALPHABET, MalformedKey, checksum, new_token, parse_token
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.selectors import api_key_authenticate
from control.tenants.administration.services import api_key_create, api_key_revoke, organization_create
from tests.control.factories import make_key, make_organization

SECOND = dt.timedelta(seconds=1)


def is_refused(token: str) -> bool:
    try:
        api_key_authenticate(token)
    except ApiError as error:
        return (error.status, error.message) == (401, "Incorrect API key provided. It is mistyped, revoked or expired.")
    return False


def test_a_new_key_has_the_documented_format_and_can_be_parsed() -> None:
    token = new_token()
    text = str(token)

    assert text.startswith("sk_live_")
    assert len(text) == len("sk_live_") + 8 + 30 + 6  # prefix, id, secret and checksum
    assert parse_token(text) == token
    assert token.secret not in repr(token)


def test_the_checksum_is_crc32_in_base_62() -> None:
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    value = 0
    for digit in checksum("123456789"):
        value = value * 62 + digits.index(digit)

    assert value == 0xCBF43926  # the check value of CRC-32
    assert checksum("") == "000000"


@given(st.integers(8, 51), st.sampled_from(ALPHABET))  # all positions after the prefix
def test_the_checksum_detects_one_mistyped_character(position: int, character: str) -> None:
    text = str(new_token())
    mistyped = text[:position] + character + text[position + 1 :]

    if mistyped != text:
        with pytest.raises(MalformedKey):
            parse_token(mistyped)


@given(st.text(max_size=60))
def test_text_that_is_not_a_key_is_refused_as_malformed(text: str) -> None:
    with pytest.raises(MalformedKey):
        parse_token(text)


def test_only_a_hash_of_the_secret_is_stored(db: None) -> None:
    key, token = make_key()

    stored = ApiKey.objects.filter(pk=key.pk).values().get()

    secret = parse_token(token).secret
    assert not any(secret in str(value) for value in stored.values())
    assert stored["last4"] == token[-4:]


def test_a_key_authenticates_its_own_organization(db: None) -> None:
    own, other = make_organization(), make_organization()
    _, token = make_key(own)
    make_key(other)

    assert api_key_authenticate(token).organization == own


def test_the_id_of_an_existing_key_with_another_secret_is_refused(db: None) -> None:
    key, _ = make_key()
    body = f"{key.pk}{new_token().secret}"

    assert is_refused(f"sk_live_{body}{checksum(body)}")


def test_an_unknown_key_is_refused(db: None) -> None:
    assert is_refused(str(new_token()))


def test_an_expired_key_is_refused(db: None) -> None:
    _, expired = make_key(expires_at=timezone.now() - SECOND)
    _, valid = make_key(expires_at=timezone.now() + 60 * SECOND)

    assert is_refused(expired)
    assert not is_refused(valid)


def test_a_revoked_key_is_refused_and_keeps_the_time_of_its_first_revocation(db: None) -> None:
    key, token = make_key()
    first = api_key_revoke(key=key).revoked_at

    assert api_key_revoke(key=key).revoked_at == first
    assert is_refused(token)
    assert Client().get("/v1/models", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_the_last_use_of_a_key_is_recorded_at_most_once_a_minute(db: None) -> None:
    key, token = make_key()
    api_key_authenticate(token)
    key.refresh_from_db()
    first = key.last_used_at
    assert first is not None

    api_key_authenticate(token)
    key.refresh_from_db()
    assert key.last_used_at == first

    ApiKey.objects.update(last_used_at=first - 61 * SECOND)
    api_key_authenticate(token)
    key.refresh_from_db()
    assert key.last_used_at is not None
    assert key.last_used_at >= first


def test_a_second_organization_of_the_same_name_is_refused(db: None) -> None:
    organization = organization_create(name="Acme")

    with pytest.raises(ApiError) as error:
        organization_create(name="Acme")

    assert (error.value.status, error.value.code) == (409, "name_taken")
    api_key_create(organization=organization, name="the transaction is still usable")
