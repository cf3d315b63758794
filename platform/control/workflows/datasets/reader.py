"""Starts a process that renders and tokenizes rows (`rendering`), and receives the results.

Chat template and tokenizer come from customers and might compute for hours or fill the memory. Therefore they run in a
process that can be killed, not in the server that all organizations share.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.processes.child_environment import child_environment
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.quotas.file_work import Slots
from control.workflows.datasets.rendering import UNREADABLE
from control.workflows.prompt_files.child import lower_priority

CPU_SECONDS = 10  # limit for all rows of a file
MAX_READERS = 2  # limit of one server process; its container must have `rendering.MEMORY_BYTES` for each of them
reader_slots = Slots(MAX_READERS, per_organization=1, wait_seconds=30.0)
# time limit from the last row to the results; longer than the CPU time, because the machine may be busy
_WALL_SECONDS = 60.0
_IMPORT_ROOT = str(Path(__file__).parents[3])


class ModelReader:
    """A process that renders and tokenizes rows. Call `send` once, then `readings` once."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def send(self, path: Path) -> None:
        """Sends the rows of a file, as `passes.sample_rows` writes them.

        Blocks while the process is busy, at most until its CPU time limit ends it.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), path.open("rb") as rows:  # the process has ended: `readings` reports the reason
            shutil.copyfileobj(rows, self._process.stdin, 1 << 20)

    def readings(self) -> list[dict[str, Any]] | None:
        """Returns the lines that `rendering` prints, or None if there is no readable tokenizer on this machine.

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
    """Starts the process, and kills it at the end of the block.

    Args: num_shown: the maximum number of tokens that the result of a row lists; 0: there is one result, with the sums
        over all rows.
    Raises: ApiError: 429, the organization runs a reader already, or too many others do.
    """
    environment = {**child_environment(), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_IMPORT_ROOT, os.environ.get("PYTHONPATH"))))
    arguments = (base_model.path, str(num_shown), str(CPU_SECONDS))
    with reader_slots.taken(organization.pk):
        process = subprocess.Popen(
            [sys.executable, "-m", "control.workflows.datasets.rendering", *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            lower_priority(process.pid)
            try:
                yield ModelReader(process)
            finally:
                process.kill()
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # the process ended before it read all rows
                    process.stdin.close()
