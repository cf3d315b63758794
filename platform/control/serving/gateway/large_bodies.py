"""Reads request bodies without keeping the event loop busy: a large one is read in a process of its own.

Python's JSON parser holds the interpreter's lock until it ends, up to 0.7 s for 8 MiB, so a thread would not help.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

from control.core.api.errors import ApiError
from control.core.processes.child_environment import child_environment
from control.serving.gateway.completion_request import CompletionRequest, InvalidRequest, UsageOptions, read

SMALL_BYTES = 256 * 1024  # parsing takes at most 20 ms on the event loop (empty lists); a body of text takes 1 ms
NUM_PROCESSES = 2
CPU_SECONDS, MEMORY_BYTES = 20, 2**30  # limits of a process; 8 MiB of empty lists take 0.7 s and 0.3 GiB
_COMMAND = (sys.executable, "-S", "-m", "control.serving.gateway.completion_request")
_IMPORT_ROOT = str(Path(__file__).parents[3])


class BodyReader:
    """Reads the large bodies of each organization one at a time, so that no organization blocks all processes."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_PROCESSES, "large-bodies")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, raw: bytes, path: str, *, organization_id: str) -> tuple[CompletionRequest, bytes]:
        """Parses a body. Returns the request, and the body that is sent to the engine. Raises: ApiError: 400."""
        if len(raw) <= SMALL_BYTES:
            return read_small(raw, path)
        turn = self._turns.get(organization_id)
        if turn is None:
            turn = self._turns[organization_id] = asyncio.Lock()
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self._executor, _read_large, raw, path)

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)


def read_small(raw: bytes, path: str) -> tuple[CompletionRequest, bytes]:
    try:
        return read(raw, path)
    except InvalidRequest as error:
        raise _refusal(*error.args) from error


def _read_large(raw: bytes, path: str) -> tuple[CompletionRequest, bytes]:
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as result:
        source.write(raw)
        source.seek(0)
        environment = {**child_environment(), "PYTHONPATH": _IMPORT_ROOT}
        command = (*_COMMAND, path, str(CPU_SECONDS), str(MEMORY_BYTES))
        ended = subprocess.run(command, stdin=source, stdout=result, stderr=subprocess.DEVNULL, env=environment)
        if ended.returncode != 0:  # ended by its limits
            raise _refusal("The request body has too many values.", "invalid_json", None)
        result.seek(0)
        return _result(result)


def _result(result: IO[bytes]) -> tuple[CompletionRequest, bytes]:
    facts = json.loads(result.readline())
    if "error" in facts:
        raise _refusal(*facts["error"])
    values = facts["request"]
    return CompletionRequest(**{**values, "usage": UsageOptions(**values["usage"])}), result.read()


def _refusal(message: str, code: str, param: str | None) -> ApiError:
    return ApiError(400, message, code, param)
