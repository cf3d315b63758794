"""Runs a pass, which is a function that reads a whole file, in a child process with limited processor time and memory.

The pass is Python code, which holds the interpreter's lock. In a thread of the server, the pass would delay all other
requests. The server's thread therefore only copies blocks of bytes to the child:

    source ── blocks ──> standard input of the child ──> pass ──> result, as JSON

    python -m MODULE PASS OPTIONS CPU_SECONDS MEMORY_BYTES < file > result

This module contains the code of both processes. It uses the standard library only, because an import of Django takes a
second. A pass may import small packages.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from control.core.processes.child_environment import child_environment
from control.workflows.prompt_files.lines import Readable

Pass = Callable[..., dict[str, Any]]  # called with the source and with options, which JSON can represent

NICENESS = 10
_BLOCK_BYTES = 1 << 20
_OUT_OF_MEMORY = 3  # exit code
_IMPORT_ROOT = str(Path(__file__).parents[3])
_PACKAGES = sysconfig.get_path("platlib")  # the option -S leaves it out, which saves the time to read its .pth files


class FileRefused(Exception):
    """A pass refuses the file. `code` identifies the reason for programs and does not change between releases."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class LimitExceeded(Exception):
    """The pass took more processor time or memory than it may."""


class ChildDied(Exception):
    """The child process failed. The message has its exit code and the end of its standard error."""


def run_in_child(
    source: Readable, one_pass: Pass, *, cpu_seconds: int, memory_bytes: int, **options: Any
) -> dict[str, Any]:
    """Calls `one_pass(source, **options)` in a child process, which ends when this process ends.

    Args: one_pass: a function at the top level of a module that runs `serve` when it is started with `python -m`.
    Raises: FileRefused, LimitExceeded, ChildDied.
    """
    arguments = (one_pass.__name__, json.dumps(options), str(cpu_seconds), str(memory_bytes))
    search_path = os.pathsep.join(filter(None, (_IMPORT_ROOT, os.environ.get("PYTHONPATH"), _PACKAGES)))
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            (sys.executable, "-S", "-m", one_pass.__module__, *arguments),
            stdin=subprocess.PIPE,
            stdout=result,
            stderr=errors,
            env={**child_environment(), "PYTHONPATH": search_path},
        ) as child:
            lower_priority(child.pid)
            try:
                assert child.stdin is not None
                with suppress(BrokenPipeError), child.stdin:  # a child may end before the end of the file
                    while block := source.read(_BLOCK_BYTES):
                        child.stdin.write(block)
            except BaseException:
                child.kill()
                raise
        return _result(child.returncode, result, errors)


def lower_priority(pid: int) -> None:
    """Lowers the priority of a child process, so that the requests of this process come first.

    The start of a child alone takes 50 ms of CPU time.
    """
    os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))


def _result(code: int, result: IO[bytes], errors: IO[bytes]) -> dict[str, Any]:
    if code in (_OUT_OF_MEMORY, -signal.SIGXCPU):
        raise LimitExceeded
    if code != 0:
        errors.seek(0)
        raise ChildDied(f"exit code {code}: {errors.read().decode(errors='replace')[-2000:]}")
    result.seek(0)
    values: dict[str, Any] = json.load(result)
    if "refused" in values:
        raise FileRefused(*values["refused"])
    return values


def serve(passes: Mapping[str, Pass]) -> int:
    """Runs in the child: reads the arguments, calls the pass and prints its result. Returns the exit code."""
    name, options, cpu_seconds, memory_bytes = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds), int(cpu_seconds) + 1))
    with suppress(OSError, ValueError):  # systems other than Linux may lack this limit
        resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    try:
        json.dump(passes[name](sys.stdin.buffer, **json.loads(options)), sys.stdout)
    except FileRefused as refusal:
        json.dump({"refused": refusal.args}, sys.stdout)
    except MemoryError:
        return _OUT_OF_MEMORY
    return 0
