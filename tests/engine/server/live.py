"""Runs the engine's HTTP server on a real socket, in a thread of the test process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from engine.drafters.none import NoDrafter
from engine.server.app import ServerApp, ServerConfig
from engine.server.connection import Connection
from engine.server.operator import LoadDrafter
from engine.server.sleeping import Sleeper
from engine.server.worker import Engine
from engine.tokenizer import Tokenizer

MODEL = "tiny"
TOKEN = "secret-of-the-test"


@dataclass(frozen=True, slots=True)
class Live:
    url: str
    app: ServerApp
    http: httpx2.Client  # sends the token with each request

    def chat(self, content: str = "hello", **body: object) -> httpx2.Response:
        messages = [{"role": "user", "content": content}]
        return self.http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0} | body)

    def complete(self, prompt: object = "hello", **body: object) -> httpx2.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, "temperature": 0} | body)


@contextmanager
def serve(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    load_drafter: LoadDrafter = lambda kind, folder: NoDrafter(),
    sleeper: Sleeper | None = None,
    **settings: Any,
) -> Iterator[Live]:
    """Runs the server until the end of the `with` block. `settings`: values for fields of `ServerConfig`."""
    defaults: dict[str, Any] = {"model_name": MODEL, "token": TOKEN, "max_batch_size": 4, "max_waiting": 8}
    config = ServerConfig(**defaults | {"max_body_bytes": 4096} | settings)
    app = ServerApp(engine, tokenizer, config, load_drafter=load_drafter, sleeper=sleeper)
    listener = socket.create_server(("127.0.0.1", 0))
    options: dict[str, Any] = {"log_level": "error", "lifespan": "on", "timeout_graceful_shutdown": 2}
    server = uvicorn.Server(uvicorn.Config(app.asgi, http=Connection, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=20) as http:
            yield Live(url, app, http)
    finally:
        server.should_exit = True
        thread.join(10)


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float = 10.0) -> None:
    """Waits for a condition that another thread or process brings about."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)
