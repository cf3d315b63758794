"""Renders chat templates in a separate process with limits of memory and time.

A template is a customer's program. `transformers` runs it in jinja's sandbox, which limits the objects that a template
can access. The sandbox limits neither memory nor time: `{{ 'x' * 10**10 }}` is a single call that cannot be
interrupted. The rendering process therefore limits its own memory, and its parent kills it if a template takes too
long. Only the request with that template fails.

    ChatRendering ─ one request per line, as JSON ─▶ main ─ limits, render
                  ◀──── the text, or an error ──────────┘

All tokenizers of a process share one rendering process, which starts with the first chat and ends with its parent.
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from engine.memory_limit import limit_memory

RENDER_SECONDS = 10.0  # common templates take a millisecond
MEMORY_BYTES = 512 << 20  # in addition to the memory that the process uses when it starts
MAX_CHARACTERS = 8 << 20  # maximum length of a rendered text, which the parent reads and tokenizes
_START_SECONDS = 120.0
_ORPHAN_SECONDS = 60  # time limit of a template if the parent has died; otherwise the parent stops the process earlier
# Errors of templates for unexpected messages, such as a missing key, a wrong type or infinite recursion.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class TemplateRefusal(ValueError):
    """The template refuses the messages or exceeds a limit. The message is a predicate: "takes too much memory"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The arguments of a template. variables: further variables, such as the names of special tokens."""

    template: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    variables: Mapping[str, Any]


class ChatRendering:
    """Thread-safe: chats are rendered one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def render(self, chat: Chat) -> str:
        """Returns the rendered text. Raises: TemplateRefusal; OSError: the process cannot be started."""
        line = json.dumps(asdict(chat)).encode() + b"\n"
        with self._lock:
            for attempt in range(2):  # an earlier failure may have ended the process, so a second attempt is made
                reply = self._exchange(line)
                if reply or attempt:
                    break
        if not reply:
            raise TemplateRefusal("takes too much memory")
        result: dict[str, str] = json.loads(reply)
        if "error" in result:
            raise TemplateRefusal(result["error"])
        return result["text"]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, line: bytes) -> bytes:
        """Returns the line of the reply; b"" if the process has ended. Raises: TemplateRefusal: it takes too long."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return b""
        reply, deadline = bytearray(), time.monotonic() + RENDER_SECONDS
        while not reply.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.close()
                raise TemplateRefusal(f"takes more than {RENDER_SECONDS:g} s")
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                self.close()
                return b""
            reply += part
        return bytes(reply)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.chat_rendering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # the stack of each thread counts towards the memory limit
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=Path(__file__).resolve().parents[1],
        )
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], _START_SECONDS)[0] or not os.read(process.stdout.fileno(), 1):
            process.kill()
            process.communicate()
            raise OSError("the process that renders chat templates does not start")
        return process


@functools.cache
def chat_rendering() -> ChatRendering:
    """Returns the `ChatRendering` that all callers in this process share."""
    rendering = ChatRendering()
    atexit.register(rendering.close)
    return rendering


def main() -> None:
    limit_memory(MEMORY_BYTES)
    sys.stdout.write(" ")  # tells the parent that the process is ready
    sys.stdout.flush()
    for line in sys.stdin:
        signal.alarm(_ORPHAN_SECONDS)  # ends a template that runs forever after its parent has died
        print(json.dumps(_render(json.loads(line))), flush=True)
        signal.alarm(0)


def _render(chat: Mapping[str, Any]) -> dict[str, str]:
    try:
        # transformers annotates the result as a string, but returns a tuple of texts and positions
        rendered: Any = render_jinja_template(
            conversations=[chat["messages"]],
            tools=chat["tools"],
            chat_template=chat["template"],
            add_generation_prompt=chat["add_generation_prompt"],
            **chat["variables"],
        )
    except MemoryError:
        return {"error": "takes too much memory"}
    except _TEMPLATE_ERRORS as error:
        return {"error": f"refuses these messages: {str(error)[:2000] or type(error).__name__}"}
    text: str = rendered[0][0]
    if len(text) > MAX_CHARACTERS:
        return {"error": f"renders more than {MAX_CHARACTERS} characters"}
    return {"text": text}


if __name__ == "__main__":
    main()
