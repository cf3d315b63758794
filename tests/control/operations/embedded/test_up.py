"""Errors that `manage.py up` reports before it starts any process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def up(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "up", *arguments],
        cwd=ROOT,
        env={**os.environ, "SLIPSTREAM_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "65536"), "--port must be in 0..65535, got 65536"),
        # No machine has the address 192.0.2.1, which is reserved for documentation.
        (("--port", "0", "--host", "192.0.2.1"), "can't listen on 192.0.2.1:0"),
    ],
)
def test_an_unusable_address_is_reported_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = up(tmp_path, *arguments)

    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_the_error_names_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        result = up(tmp_path, "--port", str(port))

    assert result.returncode != 0
    assert f"can't listen on 127.0.0.1:{port}" in result.stderr
