"""The commands with which operators remove a member's second factor and reencrypt the second factors of all members."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from tests.control.factories import make_organization
from tests.control.operations.sign_in.support import code_of, is_signed_in, make_member, new_factor, sign_in

pytestmark = pytest.mark.django_db


def test_a_removed_second_factor_is_not_asked_for() -> None:
    make_member(make_organization())
    new_factor(sign_in()[0])
    assert not is_signed_in(sign_in()[0])

    call_command("second_factor_remove", "Ana@example.com", stdout=StringIO())

    assert is_signed_in(sign_in()[0])
    with pytest.raises(CommandError):
        call_command("second_factor_remove", "ana@example.com")


def test_after_reencryption_second_factors_need_the_new_secret_key_only(settings: Any) -> None:
    make_member(make_organization())
    secret = new_factor(sign_in()[0])
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another key" * 5, [settings.SECRET_KEY]

    call_command("second_factors_reencrypt", stdout=StringIO())

    settings.SECRET_KEY_FALLBACKS = []
    client, _ = sign_in()
    client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert is_signed_in(client)
