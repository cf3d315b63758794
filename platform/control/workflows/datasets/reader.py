"""Asks what a model's chat template and tokenizer make of rows, in a process that may be killed (`rendering`).

Both are a customer's programs, which may compute for hours or fill the memory: not that of a server for everybody.
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
MAX_READERS = 4  # of one organization in one server: what it starts must leave the machine to others too
_WALL_SECONDS = 60.0  # from the last row to the answer, on a machine that may be busy
_IMPORT_ROOT = str(Path(__file__).parents[2])
_lock, _num_readers = threading.Lock(), Counter[str]()


class ModelReader:
    """`see` any number of rows, then `readings`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def see(self, example: Example) -> None:
        """Waits while the process is busy; its time for computing is what bounds that."""
        row = {"endpoint": example.endpoint, "body": example.body, "answer": example.answer}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `readings` says why
            self._process.stdin.write(json.dumps(row).encode() + b"\n")

    def readings(self) -> list[dict[str, Any]] | None:
        """Of each row, as `rendering.reading` makes them. None: there is no tokenizer that can be read here.

        Raises: ApiError: 400, the template or the tokenizer takes too long or too much.
        """
        with suppress(subprocess.TimeoutExpired):
            said, _ = self._process.communicate(timeout=_WALL_SECONDS)
            if self._process.returncode == UNREADABLE:
                return None
            if self._process.returncode == 0:
                return [json.loads(line) for line in said.splitlines()]
        message = f"The model's chat template or tokenizer takes more than {CPU_SECONDS} s, or too much memory."
        raise ApiError(400, message, "chat_template_error", "model")


@contextmanager
def model_reader(organization: Organization, base_model: BaseModel, *, num_shown: int) -> Iterator[ModelReader]:
    """Args: num_shown: how many tokens of each row its reading holds.

    Raises: ApiError: 429, the organization has as many at work as it may.
    """
    environment = {**child_environment(), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_IMPORT_ROOT, os.environ.get("PYTHONPATH"))))
    arguments = (base_model.path, str(num_shown), str(CPU_SECONDS))
    with _place(organization.pk):
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
                with suppress(BrokenPipeError):  # it left rows unread
                    process.stdin.close()


@contextmanager
def _place(organization_id: str) -> Iterator[None]:
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
