"""Records the arguments of all processes of this machine, which every user of the machine can read."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS_BETWEEN_LOOKS = 0.02  # short, because the child process of a job may run for less than a second


class CommandLines:
    """`seen` has the command line of each process that ran in the `with` body, with spaces between the arguments."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def of(self, program: str) -> list[str]:
        return [line for line in self.seen if program in line]

    def _watch(self) -> None:
        while not self._end.wait(SECONDS_BETWEEN_LOOKS):
            self._look()

    def _look(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # the process has ended
