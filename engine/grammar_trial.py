"""Where grammars of strangers are compiled first: a process of its own, and in it a fresh one for each.

xgrammar is C++ and can't be interrupted; some sources keep it busy for hours, take gigabytes or crash it. Compiling is
a function of the source alone, so what went well here goes as well in the process that serves.

    GrammarTrial ─ vocabulary, then one source a line ─▶ main ─ fork ─▶ limits, compile, walk
                 ◀────────────── null or what is wrong with it ───────────────┘

The walk takes tokens at random: a grammar may be quick to compile and slow to match, as `(\\w+\\s?)+` is.
"""

import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar

from engine.xgrammar_compile import compile_source, new_compiler

WALL_SECONDS = 20.0
MEMORY_BYTES = 1 << 30  # beyond what the process has to begin with
_START_SECONDS = 120.0
_IDLE_SECONDS = 600  # then it ends; it holds 280 MB, 190 of them its own
_WALK_STEPS = 200
_SLOW_SECONDS = 0.1  # of CPU for one step; common grammars take a thousandth


class GrammarTrial:
    """Starts the process with the first source and again when it is gone. One caller at a time."""

    def __init__(self, vocabulary: list[bytes], stop_token_ids: list[int], *, cpu_seconds: int) -> None:
        """`cpu_seconds`: what a source may take to compile and to walk."""
        texts = [token.hex() for token in vocabulary]
        hello = {"vocabulary": texts, "stop_token_ids": stop_token_ids, "cpu_seconds": cpu_seconds}
        self._hello = json.dumps(hello).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    def fault_of(self, kind: str, source: str) -> str | None:
        """What is wrong with a source; None: it compiles, within limits.

        Raises: OSError: the process can't be had.
        """
        try:
            return self._ask(kind, source)
        except OSError:
            self.close()
            return self._ask(kind, source)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, kind: str, source: str) -> str | None:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([kind, source]).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _START_SECONDS + WALL_SECONDS)[0]:
            raise TimeoutError("the process that tries grammars does not answer")
        line = process.stdout.readline()
        if not line:
            raise BrokenPipeError("the process that tries grammars has ended")
        fault: str | None = json.loads(line)
        return fault

    def _start(self) -> subprocess.Popen[bytes]:
        # Threads would not survive the fork; so there are none.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.grammar_trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(self._hello)
        return process


def main() -> None:
    hello = json.loads(sys.stdin.readline())
    vocabulary = [bytes.fromhex(token) for token in hello["vocabulary"]]
    compiler, cpu_seconds = new_compiler(vocabulary, hello["stop_token_ids"]), hello["cpu_seconds"]
    signal.alarm(_IDLE_SECONDS)
    for line in sys.stdin:
        kind, source = json.loads(line)
        print(json.dumps(_in_a_fork(partial(_fault, compiler, len(vocabulary), kind, source), cpu_seconds)), flush=True)
        signal.alarm(_IDLE_SECONDS)


def _in_a_fork(find_fault: Callable[[], str | None], cpu_seconds: int) -> str | None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit(cpu_seconds)
            os.write(write, json.dumps(find_fault()).encode())
        finally:
            os._exit(0)
    os.close(write)
    finished, _, _ = select.select([read], [], [], WALL_SECONDS)
    answer = os.read(read, 1 << 16) if finished else b""
    os.close(read)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        fault: str | None = json.loads(answer)
        return fault
    timed_out = not finished or os.WTERMSIG(status) == signal.SIGXCPU
    return f"takes more than {cpu_seconds} s to compile" if timed_out else "is too large or too deeply nested"


def _limit(cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))  # a fork starts from zero
    with suppress(OSError, ValueError):  # no such file, no such limit: another system than Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _fault(compiler: xgrammar.GrammarCompiler, vocab_size: int, kind: str, source: str) -> str | None:
    try:
        compiled = compile_source(compiler, kind, source)
    except ValueError as error:
        return str(error)
    except MemoryError:
        return "is too large or too deeply nested"
    return _walk(compiled, vocab_size)


def _walk(compiled: Any, vocab_size: int) -> str | None:
    """What goes wrong while tokens are taken at random."""
    generator = random.Random(0)
    matcher = xgrammar.GrammarMatcher(compiled)
    bits = xgrammar.allocate_token_bitmask(1, vocab_size)
    for step in range(_WALK_STEPS):
        started = time.process_time()
        matcher.fill_next_token_bitmask(bits)
        allowed = np.unpackbits(bits[0].numpy().view(np.uint8), count=vocab_size, bitorder="little").nonzero()[0]
        if not len(allowed):
            return "can't be satisfied by any answer" if step == 0 else "leads to places where no answer can go on"
        matcher.accept_token(int(generator.choice(allowed)))
        if time.process_time() - started > _SLOW_SECONDS:
            return "is too ambiguous: matching it takes longer and longer as the answer grows"
        if matcher.is_terminated():
            matcher.reset()
    return None


if __name__ == "__main__":
    main()
