"""Secrets and personal data are found in texts, completely, and in a time that is linear in the length of the text."""

import time

import pytest

from control.data.recognisers.credentials import SECRETS
from control.data.recognisers.personal import PERSONAL
from control.data.recognisers.recogniser import Recogniser

ALL = {**SECRETS, **PERSONAL}
A, D = "aB3", "1234567890"
# Nothing here is a real secret: the values are made of repeated characters.
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc+/=\n-----END RSA PRIVATE KEY-----"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


def found(kind: str, text: str) -> list[str]:
    data = text.encode()
    return [data[begin:end].decode() for one in ALL[kind] for begin, end in one.find(data)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("email", "ann.lee+news@mail.example.com"),
        ("ip_address", "2001:db8::8a2e:370:7334"),
        ("ip_address", "192.168.0.17"),
        ("credit_card", "4111 1111 1111 1111"),
        ("iban", "DE89 3704 0044 0532 0130 00"),
        ("iban", "NO9386011117947"),
        ("phone_number", "+49 30 901820"),
        ("phone_number", "+1 (650) 253-0000"),
        ("private_key", KEY),
        ("private_key", KEY.replace("RSA PRIVATE", "ENCRYPTED PRIVATE")),
        ("private_key", KEY.partition("\n-----END")[0]),
        ("api_key", "sk-proj-" + A * 12),
        ("api_key", "hf_" + A * 11),
        ("api_key", "sk_live_" + A * 14),
        ("aws_key", "AKIA" + "Q" * 16),
        ("github_token", "ghp_" + A * 12),
        ("json_web_token", TOKEN),
        ("slack_token", f"xoxb-{D}-{D}-abc1"),
        ("stripe_key", "rk_live_" + A * 8),
        ("stripe_key", "rk_live_" + A * 40),  # the package's pattern ends before the key does
        ("sendgrid_key", f"SG.{A * 7}a.{A * 14}b"),
        ("twilio_key", "SK" + "ab12" * 8),
        ("square_secret", "sq0csp-" + A * 14 + "x"),
        ("mailchimp_key", "ab12" * 8 + "-us12"),
        ("npm_token", "npm_" + A * 12),
        ("discord_token", f"M{A * 8}.{A * 2}.{A * 9}"),
    ],
)
def test_each_kind_is_found_completely(kind: str, value: str) -> None:
    for before, after in (("", ""), ("It is ", ", yes"), ("«", "»"), ("\n", "\n"), ("é ", " AND MORE")):
        assert found(kind, before + value + after) == [value], (before, after)


def test_of_an_address_with_a_password_only_the_password_is_the_secret() -> None:
    assert found("password_in_url", "postgres://ann:hunter2@db/x") == ["hunter2"]


def test_neighbouring_values_are_all_found() -> None:
    one, other = "DE89 3704 0044 0532 0130 00", "GB29 NWBK 6016 1331 9268 19"
    assert found("iban", f"{one} {other} {one}") == [one, other, one]
    assert found("phone_number", "+1 650-253-0000 1200 +1 650-253-0000") == ["+1 650-253-0000"] * 2
    assert found("credit_card", "0000 4111 1111 1111 1111 2222") == ["4111 1111 1111 1111"]
    assert len(found("private_key", f"{KEY}\n{KEY}")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "at 12:30 on 2026-11-27",
        "1234 5678 9012 3456",
        "DE00 3704 0044 0532 0130 00",
        "+1 234 and +12 345 678 9",
        "sk-learn-compatible-estimators-are-here",
        "BEGIN PRIVATE KEY",
        "eyJ.a.b",
        "https://example.com/a:b?c@d",
        "std::vector and a :: b",
        "a@b",
        "x = AKIA and npm_install",
    ],
)
def test_text_that_only_resembles_sensitive_data_is_not_found(text: str) -> None:
    assert {kind: found(kind, text) for kind in ALL if found(kind, text)} == {}


@pytest.mark.parametrize(
    "text",
    [
        *("aws key " * 30_000, "a@a" * 80_000, "+1" * 120_000, "+1 650-253-0000 " * 2_000, "eyJ." * 60_000),
        *("DE89 3704 0044 0532 0130 00 " * 1_500, "1" * 250_000, "4111 1111 1111 1112 " * 12_000),
        *("-----BEGIN PRIVATE KEY-----" * 9_000, "://a:b" * 40_000, " AKC" + "a" * 250_000, "1:" * 120_000),
    ],
)
def test_hostile_texts_take_a_time_that_is_linear_in_their_length(text: str) -> None:
    data = text.encode()
    started = time.process_time()
    for kind in ALL:
        for one in ALL[kind]:
            sum(1 for _ in one.find(data))
    assert time.process_time() - started < 5


def test_empty_matches_are_skipped() -> None:
    assert list(Recogniser(r"\b|x+").find("ab xx é".encode())) == [(4, 5)]
