"""Tries untrusted grammars in a separate process, which forks for each grammar, before the server compiles them.

xgrammar is C++ and can't be interrupted, and some sources keep it busy for hours, take gigabytes or crash it.
Compilation depends only on the source, so a source that compiles in the trial also compiles in the server's process.

    GrammarTrial ─ vocabulary, then one source per line ─▶ main ─ fork ─▶ limits, compile, walk
                 ◀──────────────────── null or an error ────────────────────────┘

The walk matches random tokens, because a grammar such as `(\\w+\\s?)+` is fast to compile and slow to match.
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
from functools import partial
from typing import Any

import numpy as np
import xgrammar

from engine.grammars.xgrammar_compile import compile_source, new_compiler
from engine.memory_limit import limit_memory

WALL_SECONDS = 20.0
MEMORY_BYTES = 1 << 30  # in addition to the memory that the process uses when it forks
_START_SECONDS = 120.0
_IDLE_SECONDS = 600  # an idle process ends after this time, because it takes 280 MB, of which 190 MB are not shared
_WALK_STEPS = 200
_SLOW_SECONDS = 0.1  # CPU time limit for one token; common grammars take a thousandth of this


class GrammarTrial:
    """Starts the process when the first source is tried, and restarts it if it has ended. Not thread-safe."""

    def __init__(self, vocabulary: list[bytes], stop_token_ids: list[int], *, cpu_seconds: int) -> None:
        """`cpu_seconds`: CPU time limit for one source, which is compiled and then matched with random tokens."""
        texts = [token.hex() for token in vocabulary]
        setup = {"vocabulary": texts, "stop_token_ids": stop_token_ids, "cpu_seconds": cpu_seconds}
        self._setup_line = json.dumps(setup).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    def find_error(self, kind: str, source: str) -> str | None:
        """Returns the error message of a source; None if the source compiles within the limits.

        Raises: OSError: the process can't be started or does not reply.
        """
        try:
            return self._exchange(kind, source)
        except OSError:
            self.close()
            return self._exchange(kind, source)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, kind: str, source: str) -> str | None:
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
        error_message: str | None = json.loads(line)
        return error_message

    def _start(self) -> subprocess.Popen[bytes]:
        # Threads do not survive a fork, so the process must not start any.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.grammars.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(self._setup_line)
        return process


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    vocabulary = [bytes.fromhex(token) for token in setup["vocabulary"]]
    compiler, cpu_seconds = new_compiler(vocabulary, setup["stop_token_ids"]), setup["cpu_seconds"]
    signal.alarm(_IDLE_SECONDS)
    for line in sys.stdin:
        kind, source = json.loads(line)
        find_error = partial(_find_error, compiler, len(vocabulary), kind, source)
        print(json.dumps(_in_a_fork(find_error, cpu_seconds)), flush=True)
        signal.alarm(_IDLE_SECONDS)


def _in_a_fork(find_error: Callable[[], str | None], cpu_seconds: int) -> str | None:
    """Calls `find_error` in a forked process with limits. Returns its result, or why the process did not finish."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit(cpu_seconds)
            os.write(write, json.dumps(find_error()).encode())
        finally:
            os._exit(0)
    os.close(write)
    finished, _, _ = select.select([read], [], [], WALL_SECONDS)
    reply = os.read(read, 1 << 16) if finished else b""
    os.close(read)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if reply:
        error_message: str | None = json.loads(reply)
        return error_message
    timed_out = not finished or os.WTERMSIG(status) == signal.SIGXCPU
    return f"takes more than {cpu_seconds} s to compile" if timed_out else "is too large or too deeply nested"


def _limit(cpu_seconds: int) -> None:
    limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))  # the CPU time of a fork starts at zero


def _find_error(compiler: xgrammar.GrammarCompiler, vocab_size: int, kind: str, source: str) -> str | None:
    try:
        compiled = compile_source(compiler, kind, source)
    except ValueError as error:
        return str(error)
    except MemoryError:
        return "is too large or too deeply nested"
    return _walk(compiled, vocab_size)


def _walk(compiled: Any, vocab_size: int) -> str | None:
    """Matches random tokens and returns the error message, if any."""
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
