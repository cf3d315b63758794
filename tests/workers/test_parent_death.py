"""A command ends when its owner, the process that started it, ends, even if the owner is killed.

`dying_with_parent` asks the kernel for this. `kept_command` starts the command below a keeper process, which kills the
command and its children when the owner's end of a pipe, the lifeline, is closed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from workers.parent_death import dying_with_parent, kept_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent dies")

SLEEP = [sys.executable, "-c", "import time; print('asleep', flush=True); time.sleep(60)"]


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes():
        assert time.monotonic() < deadline, f"process {pid} outlived its owner"
        time.sleep(0.02)


def test_a_command_dies_with_a_killed_parent() -> None:
    program = (
        "import subprocess, sys\n"
        "from workers.parent_death import dying_with_parent\n"
        f"child = subprocess.Popen(dying_with_parent({SLEEP!r}), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent, parent.stdout as output:
        pid = int(output.readline())
        parent.kill()

    wait_until_ended(pid)


def test_dying_with_parent_preserves_the_arguments_and_the_exit_code_of_a_command() -> None:
    program = "import sys; sys.exit(len(sys.argv))"

    assert subprocess.run(dying_with_parent([sys.executable, "-c", program, "a", "b"]), check=False).returncode == 3


def test_the_children_of_a_kept_command_die_when_its_owner_closes_the_lifeline() -> None:
    program = f"import subprocess; print(subprocess.Popen({SLEEP!r}).pid, flush=True); import time; time.sleep(60)"
    lifeline, owned_end = os.pipe()  # the keeper reads the lifeline; this test, the owner, holds the other end
    keeper = subprocess.Popen(
        kept_command([sys.executable, "-c", program], lifeline=lifeline),
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        start_new_session=True,
    )
    os.close(lifeline)
    assert keeper.stdout is not None
    try:
        with keeper.stdout as output:
            lines = [output.readline(), output.readline()]
        (grandchild,) = (int(line) for line in lines if line != b"asleep\n")  # the two lines come in any order
    finally:
        os.close(owned_end)

    assert keeper.wait(10) == 137  # 128 + SIGKILL, the exit code of the command
    wait_until_ended(grandchild)


def test_a_keeper_exits_with_127_and_an_error_message_if_its_command_does_not_exist(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lifeline, owned_end = os.pipe()
    keeper = subprocess.run(
        kept_command(["/nonexistent/command"], lifeline=lifeline),
        pass_fds=(lifeline,),
        start_new_session=True,
        check=False,
    )
    os.close(lifeline)
    os.close(owned_end)

    assert keeper.returncode == 127
    assert "could not be started" in capfd.readouterr().err
