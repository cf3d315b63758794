"""Passes (functions that read a file once) that behave badly, for tests of the limits of child processes."""

import os
import signal
import sys
from typing import Any, NoReturn

from control.workflows.prompt_files.child import FileRefused, serve
from control.workflows.prompt_files.lines import Readable


def report(source: Readable) -> dict[str, Any]:
    num_bytes = sum(map(len, iter(lambda: source.read(1 << 16), b"")))
    return {"pid": os.getpid(), "num_bytes": num_bytes, "niceness": os.nice(0), "environment": dict(os.environ)}


def read_nothing(source: Readable) -> dict[str, Any]:
    return {}


def refuse(source: Readable) -> NoReturn:
    raise FileRefused("a_code", "line 3: a message")


def compute_forever(source: Readable) -> NoReturn:
    while True:
        pass


def fill_memory(source: Readable) -> NoReturn:
    blocks = []
    while True:
        blocks.append(bytes(1 << 20))


def crash(source: Readable) -> NoReturn:
    raise RuntimeError("a bug")


def be_killed(source: Readable) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


if __name__ == "__main__":
    passes = (report, read_nothing, refuse, compute_forever, fill_memory, crash, be_killed)
    sys.exit(serve({one.__name__: one for one in passes}))
