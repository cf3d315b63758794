"""TLS between a gateway and two real engines, which run a tiny model."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from cryptography import x509

from control.core.api.errors import ApiError
from control.serving.deployments.engine_tls import KEY_VARIABLE, EngineAddress, engine_key
from control.serving.deployments.health import engine_client, probe
from control.serving.gateway import connections
from control.serving.gateway.connections import EnginePools
from control.serving.gateway.upstream import Answer, NotAccepted, Target, forward
from tests.engine.server.child import TOKEN, Child, launch

CHAT = b'{"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 4}'
STREAM = CHAT.replace(b'"max_tokens"', b'"stream": true, "max_tokens"')
CHAT_PATH = "/v1/chat/completions"
Engines = tuple[Target, Target]

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Yields the addresses of the two engines, which have the same token."""
    from tests.engine.openai.tool_model import make_tool_model  # imports torch

    folder = make_tool_model(tmp_path_factory.mktemp("model"))
    keys, processes = [engine_key(), engine_key()], []
    with pytest.MonkeyPatch.context() as environment:
        for key in keys:
            environment.setenv(KEY_VARIABLE, key.key_and_certificate)
            processes.append(launch("--model-dir", str(folder), "--drafter", "none"))
    children = [Child(process, json.loads(process.stdout.readline())) for process in processes if process.stdout]
    first, second = (
        Target("127.0.0.1", child.port, TOKEN, certificate=key.certificate)
        for child, key in zip(children, keys, strict=True)
    )
    yield first, second
    for process in processes:
        process.kill()
        process.communicate()


async def ask(target: Target, body: bytes = CHAT) -> Answer:
    return await forward(target, CHAT_PATH, body, request_id="r", memory=None)


async def stream_of(answer: Answer) -> bytes:
    assert isinstance(answer.body, AsyncGenerator)
    return b"".join([part async for part in answer.body])


def test_a_gateway_and_a_supervisor_reach_an_engine_over_tls(engines: Engines) -> None:
    async def run() -> tuple[Answer, bytes]:
        return await ask(engines[0]), await stream_of(await ask(engines[0], STREAM))

    answer, stream = asyncio.run(run())
    assert answer.status == 200
    assert stream.rstrip().endswith(b"[DONE]")
    with engine_client() as client:
        assert probe(client, engines[0].address, TOKEN).is_healthy


def test_an_engine_with_a_certificate_refuses_plain_http_and_old_tls(engines: Engines) -> None:
    with pytest.raises(ApiError):
        asyncio.run(ask(replace(engines[0], certificate="")))
    with engine_client() as client:
        assert not probe(client, replace(engines[0].address, certificate=""), TOKEN).is_healthy
        url = engines[0].address.url("/health").replace("https", "http")
        with pytest.raises(httpx2.HTTPError):
            client.get(url)
    old = ssl.create_default_context(cadata=engines[0].certificate)
    old.check_hostname, old.maximum_version = False, ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(engines[0].address.url("/health"), verify=old, trust_env=False)


def test_a_gateway_refuses_the_certificate_of_another_engine_even_if_it_is_connected_to_this_engine(
    engines: Engines,
) -> None:
    """The other engine has the same token, so it would answer."""
    other = replace(engines[0], certificate=engines[1].certificate)

    async def run() -> None:
        assert (await ask(engines[0])).status == 200  # the connection stays open
        with pytest.raises(NotAccepted):
            await ask(other)
        assert (await ask(engines[1])).status == 200

    asyncio.run(run())
    with engine_client() as client:
        assert not probe(client, other.address, TOKEN).is_healthy


@pytest.mark.parametrize("certificate", ["", engine_key().certificate])
def test_a_client_that_does_not_know_the_certificate_does_not_connect(engines: Engines, certificate: str) -> None:
    extensions = replace(engines[0].address, certificate=certificate).extensions
    with engine_client() as client, pytest.raises(httpx2.ConnectError):
        client.get(engines[0].address.url("/health"), extensions=extensions)


def test_each_start_of_an_engine_has_a_key_that_can_sign_for_no_other_engine() -> None:
    first, second = engine_key(), engine_key()
    assert first.certificate != second.certificate
    for key in (first, second):
        certificate = x509.load_pem_x509_certificate(key.certificate.encode())
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
        assert "PRIVATE" not in key.certificate


def test_pools_of_engines_that_have_ended_are_closed_and_pools_in_use_are_not(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNUSED_SECONDS", 0.0)

    async def get(client: httpx2.AsyncClient, address: EngineAddress, **options: Any) -> httpx2.Response:
        request = client.build_request("GET", address.url("/health"), extensions=address.extensions)
        return await client.send(request, **options)

    async def run() -> None:
        first, second = engines[0].address, engines[1].address
        pools = EnginePools(httpx2.Limits(max_keepalive_connections=4))
        async with httpx2.AsyncClient(transport=pools, trust_env=False) as client:
            open_answer = await get(client, first, stream=True)
            assert (await get(client, second)).status_code == 200
            with pytest.raises(httpx2.ConnectError):
                await get(client, EngineAddress("127.0.0.1", first.port, engine_key().certificate))
            assert first.certificate in pools._pools
            assert second.certificate not in pools._pools
            assert json.loads(await open_answer.aread())["status"] == "ok"
            await get(client, second)
            assert set(pools._pools) == {second.certificate}

    asyncio.run(run())
