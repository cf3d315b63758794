"""A fake of `python -m engine.server` with the same arguments and routes, but without a model.

It uses only the standard library, so that it starts quickly.

The file `behaviour` in the model folder says how the process behaves:
    serve (the default)
    crash       ends at once
    mute        never becomes healthy
    stubborn    ignores SIGTERM
    draining    is healthy, but refuses requests, like an engine that is about to stop
    sleepless   cannot sleep
    narrow      refuses requests while another request runs, like an engine whose queue is full

The fake engine sleeps and wakes as an engine does. Each time it wakes, it appends a line to the file `wakes` in the
model folder. While a file `hold` is in the model folder, requests to /sleep and /wake wait before they have any effect,
and the fake engine creates a file `held` there. The route /age makes the engine report a longer idle time.

The content of the last message says how a request ends:
    die         the process ends after two and a half events
    die at once the process ends before the first event
    hang up     the connection is closed before the first event
    refuse      the engine refuses the request with an error
    pause       the stream goes on when the file `go_on` appears in the model folder
    linger      the stream stays open until the caller disconnects; then the file `hung_up` appears in the model folder
    sample      the answer depends on the seed, which the engine draws if the request has none

The file `candidate` in the model folder says how an engine with a speculator answers from then on:
    differ      with another text
    die         the process ends
    wait        once the caller has disconnected; then the file `hung_up` appears in the model folder
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = os.environ.get("SLIPSTREAM_ENGINE_TOKEN")
OPERATOR_TOKEN = os.environ.get("SLIPSTREAM_ENGINE_OPERATOR_TOKEN")


def usage(num_tokens: int) -> dict[str, Any]:
    details = {"cached_tokens": 4}
    return {"prompt_tokens": 7, "completion_tokens": num_tokens, "prompt_tokens_details": details}


# Two routes send the usage in comments of their streams. For each of them: the usage of an answer with 2 tokens
# (USAGES), and the types of the events of a stream (EVENTS).
USAGES = {
    "/v1/responses": {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
    "/v1/messages": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4},
}
EVENTS = {
    "/v1/responses": ("response.created", "response.output_text.delta", "response.completed"),
    "/v1/messages": ("message_start", "content_block_delta", "message_stop"),
}


class Use:
    """Whether the fake engine sleeps, how many requests are open, and when it was last used."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_asleep = False
        self.num_open = 0
        self.used_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.num_open else time.monotonic() - self.used_at

    @contextlib.contextmanager
    def one_more(self) -> Iterator[bool]:
        """Counts a request as open while it runs. Yields whether the engine is awake."""
        with self.lock:
            is_awake = not self.is_asleep
            self.num_open += is_awake
        try:
            yield is_awake
        finally:
            with self.lock:
                if is_awake:
                    self.num_open, self.used_at = self.num_open - 1, time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model_dir: Path
    options: dict[str, Any]
    behaviour: str
    use = Use()
    num_reads = 0  # of /metrics, which reports this number as its counter of requests

    def do_GET(self) -> None:
        if not self._authorized():
            return
        if self.path == "/metrics":
            Handler.num_reads += 1
            text = f"vllm:e2e_request_latency_seconds_count {Handler.num_reads}\n"
            self._send(200, "text/plain; version=0.0.4", text.encode())
            return
        is_healthy = self.path == "/health" and self.behaviour != "mute"
        facts = {
            "status": "ok" if is_healthy else "starting",
            "sleep": {"state": "asleep" if self.use.is_asleep else "awake"},
            "load": {"open": self.use.num_open, "idle_seconds": self.use.idle_seconds},
        }
        self._send_json(200 if is_healthy else 503, facts)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        path, _, query = self.path.partition("?")
        if path in OPERATOR_ROUTES:
            if self._authorized(OPERATOR_TOKEN):
                OPERATOR_ROUTES[path](self, float(query.rpartition("=")[2] or 0))
            return
        if not self._authorized():
            return
        with self.use.one_more() as is_awake:
            if is_awake and self.behaviour == "narrow" and self.use.num_open > 1:
                self._refuse(429, "engine_overloaded")
            elif is_awake:
                self._answer(json.loads(raw))
            else:
                self._refuse(503, "engine_asleep")

    def sleep(self, min_idle_seconds: float) -> None:
        if self.behaviour == "sleepless":
            self._refuse(409, "sleep_not_supported")
            return
        self._hold()
        with self.use.lock:
            self.use.is_asleep = self.use.is_asleep or self.use.idle_seconds >= min_idle_seconds
        if self.use.is_asleep:
            self._send_json(200, {"state": "asleep"})
        else:
            self._refuse(409, "engine_in_use")

    def wake(self, _: float) -> None:
        self._hold()
        with self.use.lock:
            if self.use.is_asleep:
                with (self.model_dir / "wakes").open("a") as wakes:
                    print(os.getpid(), file=wakes)
                self.use.is_asleep, self.use.used_at = False, time.monotonic()
        self._send_json(200, {"state": "awake"})

    def _hold(self) -> None:
        while (self.model_dir / "hold").exists():
            (self.model_dir / "held").touch()
            time.sleep(0.01)

    def age(self, seconds: float) -> None:
        with self.use.lock:
            self.use.used_at -= seconds
        self._send_json(200, {})

    def _answer(self, body: dict[str, Any]) -> None:
        if self._candidate() == "die":
            os._exit(1)
        if self._candidate() == "wait":
            self._linger()
            self.close_connection = True
            return
        content = body["messages"][-1]["content"] if "messages" in body else body.get("prompt") or body["input"]
        if content == "die at once":
            os._exit(1)
        if self.behaviour == "draining":
            self._refuse(503, "server_draining")
            return
        if content == "refuse":
            error = {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "too_long"}
            self._send_json(400, {"error": error})
        elif body.get("stream") and self.path in EVENTS:
            self._stream_with_comments(content)
        elif body.get("stream"):
            self._stream(content, body)
        else:
            if content == "linger":
                self._linger()
            body_sent = {
                "echo": body,
                "path": self.path,
                "options": self.options,
                "pid": os.getpid(),
                "memory": self.headers.get("x-slipstream-memory"),
            }
            seed, texts = self._texts(content, body)
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(texts)}, "finish_reason": "stop"}
            body_sent |= {"seed": seed, "choices": [choice], "metrics": self._metrics()}
            self._send_json(200, body_sent | {"usage": USAGES.get(self.path) or usage(2)})

    def _candidate(self) -> str:
        file = self.model_dir / "candidate"
        return file.read_text() if self.options["speculator_dir"] and file.exists() else ""

    def _texts(self, content: str, body: dict[str, Any]) -> tuple[int, list[str]]:
        """Returns the seed and the texts of the two tokens."""
        seed = body["seed"] if body.get("seed") is not None else random.getrandbits(53)
        last = "other " if self._candidate() == "differ" else "token1 "
        return seed, [f"token{seed} " if content == "sample" else "token0 ", last]

    def _metrics(self) -> dict[str, Any]:
        """Speculation statistics: an engine with a speculator has accepted one of the two tokens."""
        num_accepted = 1 if self.options["speculator_dir"] else 0
        counts = {"num_accepted_draft_tokens": num_accepted, "mean_acceptance_length": 1.0 + num_accepted}
        return {"speculative_decoding": counts}

    def _stream(self, content: str, body: dict[str, Any]) -> None:
        """Sends two events. They contain the usage if the request's options ask for it, as in the engine."""
        options = body.get("stream_options") or {}
        seed, texts = self._texts(content, body)
        self._begin_stream()
        if content == "hang up":
            self.close_connection = True
            return
        for number in range(2):
            choice: dict[str, Any] = {"index": 0, "delta": {"content": texts[number]}}
            if body.get("return_acceptance"):
                is_accepted = number == 0 and self.options["speculator_dir"] is not None
                choice["acceptance"] = [{"text": texts[number], "accepted": is_accepted}]
            event = {"seed": seed, "choices": [choice]}
            has_usage_per_event = options.get("continuous_usage_stats") is True
            usage_member = (
                {"usage": usage(number + 1) if has_usage_per_event else None} if options.get("include_usage") else {}
            )
            self._event(json.dumps(event | usage_member))
        if content == "die":
            self.wfile.write(b'data: {"choices": [{"in')
            self.wfile.flush()
            os._exit(1)
        if content == "linger":
            self._linger()
        while content == "pause" and not (self.model_dir / "go_on").exists():
            time.sleep(0.01)
        if options.get("include_usage"):
            self._event(json.dumps({"choices": [], "usage": usage(2), "metrics": self._metrics()}))
        self._event("[DONE]")
        self.close_connection = True

    def _stream_with_comments(self, content: str) -> None:
        """Sends the events of the route, with the usage in comments if the gateway asks for it."""
        self._begin_stream()
        has_comments = "x-slipstream-usage" in self.headers
        first, delta, last = EVENTS[self.path]
        for number, kind in enumerate((first, delta, delta, last)):
            if kind == last and content == "die":
                self.wfile.flush()
                os._exit(1)
            if kind == last and content == "linger":
                self._linger()
            if has_comments:
                self.wfile.write(f': {{"usage":{json.dumps(usage(min(number, 2)))}}}\n'.encode())
            data = {"type": kind, "sequence_number": number, "delta": f"token{number} "}
            self.wfile.write(f"event: {kind}\n".encode())
            self._event(json.dumps(data))
        self.close_connection = True

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def _linger(self) -> None:
        """Waits until the caller disconnects, which makes the socket readable."""
        self.connection.settimeout(30)
        with contextlib.suppress(ConnectionError):
            if self.connection.recv(1) == b"":
                (self.model_dir / "hung_up").touch()

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _refuse(self, status: int, code: str) -> None:
        body = {"error": {"message": "not now", "type": "api_error", "code": code}}
        self._send(status, "application/json", json.dumps(body).encode(), {"Retry-After": "7"})

    def _authorized(self, token: str | None = TOKEN) -> bool:
        if self.headers.get("Authorization") == f"Bearer {token}":
            return True
        self._send_json(401, {"error": {"message": "no", "type": "authentication_error", "param": None, "code": None}})
        return False

    def _send_json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, content_type: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


OPERATOR_ROUTES = {"/sleep": Handler.sleep, "/wake": Handler.wake, "/age": Handler.age}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in (
        "--model-dir",
        "--model-name",
        "--host",
        "--device",
        "--drain-seconds",
        "--drafter",
        "--speculator-dir",
        "--weights",
        "--kv-dtype",
    ):
        parser.add_argument(name)
    for name in ("--max-batch-size", "--max-seq-len", "--memory-bytes", "--draft-budget"):
        parser.add_argument(name, type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--memory-share", type=float)
    parser.add_argument("--adapter", action="append", default=[])
    options = parser.parse_args()
    behaviour_file = Path(options.model_dir) / "behaviour"
    Handler.behaviour = behaviour_file.read_text() if behaviour_file.exists() else "serve"
    Handler.model_dir = Path(options.model_dir)
    Handler.options = vars(options)
    if Handler.behaviour == "crash":
        print("out of luck", file=sys.stderr)
        sys.exit(3)
    print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')} device={options.device}", flush=True)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    if text := os.environ.get("SLIPSTREAM_ENGINE_KEY"):
        sys.path.insert(0, str(Path(__file__).parents[4]))
        from engine.server.tls import server_context  # needs the standard library only

        # The thread of a connection makes the handshake, so that a client that sends nothing blocks no other client.
        server.socket = server_context(text).wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    end = (lambda *_: None) if Handler.behaviour == "stubborn" else (lambda *_: os._exit(0))
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
