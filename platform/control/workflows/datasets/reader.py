"""Starts a process that renders and tokenizes rows (`rendering`), and receives a reading, the result, for each row.

Chat template and tokenizer come from customers and might compute for hours or fill the memory. Therefore they run in a
process that can be killed, not in the server that all organizations share.
"""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.processes.child_environment import child_environment
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.workflows.datasets.formats import Example
from control.workflows.datasets.rendering import UNREADABLE

CPU_SECONDS = 10  # for all rows of a file
MAX_READERS = 4  # per organization and server process, so that other organizations can use the machine too
_WALL_SECONDS = 60.0  # limit from the last row to the results; longer than the CPU time, as the machine may be busy
_IMPORT_ROOT = str(Path(__file__).parents[3])
_lock, _num_readers = threading.Lock(), Counter[str]()


class ModelReader:
    """Call `send` for any number of rows, then `readings` once."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def send(self, example: Example) -> None:
        """Blocks while the process is busy, at most until its CPU time limit ends it."""
        row = {"endpoint": example.endpoint, "body": example.body, "answer": example.answer}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended: `readings` reports the reason
            self._process.stdin.write(json.dumps(row).encode() + b"\n")

    def readings(self) -> list[dict[str, Any]] | None:
        """The result of `rendering.reading` for each row, or None if there is no readable tokenizer on this machine.

        Raises: ApiError: 400, the template or the tokenizer takes too much time or memory.
        """
        with suppress(subprocess.TimeoutExpired):
            output, _ = self._process.communicate(timeout=_WALL_SECONDS)
            if self._process.returncode == UNREADABLE:
                return None
            if self._process.returncode == 0:
                return [json.loads(line) for line in output.splitlines()]
        message = f"The model's chat template or tokenizer takes more than {CPU_SECONDS} s or too much memory."
        raise ApiError(400, message, "chat_template_error", "model")


@contextmanager
def model_reader(organization: Organization, base_model: BaseModel, *, num_shown: int) -> Iterator[ModelReader]:
    """Args: num_shown: the maximum number of tokens that a reading lists.

    Raises: ApiError: 429, the organization already runs `MAX_READERS` readers.
    """
    environment = {**child_environment(), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_IMPORT_ROOT, os.environ.get("PYTHONPATH"))))
    arguments = (base_model.path, str(num_shown), str(CPU_SECONDS))
    with _reserved_reader(organization.pk):
        process = subprocess.Popen(
            [sys.executable, "-m", "control.workflows.datasets.rendering", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            try:
                yield ModelReader(process)
            finally:
                process.kill()
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # the process ended before it read all rows
                    process.stdin.close()


@contextmanager
def _reserved_reader(organization_id: str) -> Iterator[None]:
    with _lock:
        if _num_readers[organization_id] >= MAX_READERS:
            message = f"{MAX_READERS} files of your organization are being read already. Try again in a moment."
            raise ApiError(429, message, "rate_limit_exceeded", headers={"Retry-After": "2"})
        _num_readers[organization_id] += 1
    try:
        yield
    finally:
        with _lock:
            _num_readers[organization_id] -= 1
            if not _num_readers[organization_id]:
                del _num_readers[organization_id]
