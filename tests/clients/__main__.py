"""Runs the tests of all clients and writes the table of docs/clients.md: `python -m tests.clients`."""

import sys
from pathlib import Path

import pytest

from tests.clients.table import Recorder, write


def main() -> int:
    recorder = Recorder()
    code = pytest.main(["-m", "clients", str(Path(__file__).parent)], plugins=[recorder])
    if recorder.results:
        write(recorder.results)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
