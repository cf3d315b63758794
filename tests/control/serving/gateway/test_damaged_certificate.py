"""A replica whose stored certificate is damaged cannot be reached; the gateway and the supervisor handle it as such."""

import asyncio
import ssl
from collections.abc import Callable

import pytest

from control.serving.deployments.engine_tls import engine_key, trusting
from control.serving.deployments.health import engine_client, probe
from control.serving.gateway.upstream import NotAccepted, Target, forward

WHOLE = engine_key().certificate


def half(certificate: str) -> str:
    return certificate[: len(certificate) // 2]


def with_another_letter(certificate: str) -> str:
    return certificate.replace("\nMI", "\nXX", 1)


@pytest.mark.parametrize("damage", [half, with_another_letter, str.lower, lambda _: "ä", lambda _: "\0"])
def test_a_replica_with_a_damaged_certificate_is_unreachable(damage: Callable[[str], str]) -> None:
    target = Target("127.0.0.1", 1, "token", certificate=damage(WHOLE))
    assert target.certificate != WHOLE

    with engine_client() as client:
        assert not probe(client, target.address, "token").is_healthy
    with pytest.raises(NotAccepted):
        asyncio.run(forward(target, "/v1/chat/completions", b"{}", request_id="r", memory=None))


def test_clients_of_engines_verify_and_speak_no_older_protocol_than_tls_1_3() -> None:
    """Engines refuse older protocols as well; a process that has taken an engine's port might not."""
    for context in (trusting(WHOLE), trusting("")):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
