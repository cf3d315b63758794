"""Starts commands that must not outlive the process that started them, even if that process is killed with SIGKILL.

There are two ways. Both run this file as a script, which is why it imports the standard library only.

`dying_with_parent`: the script asks the kernel for SIGKILL at its parent's death and then becomes the command. The
setting survives exec. It belongs to the thread that started the script, so that thread must live as long as the
command. It exists on Linux only; elsewhere the command just runs.

`kept_command`: a keeper process watches a pipe (the lifeline), whose write end the owner keeps open and never uses.
When the owner ends, the read end reports end of file, and the keeper kills the command and all of its descendants.

    owner ── lifeline ──> keeper ──> command ──> its children
                            └ adopts orphans of the command (Linux: PR_SET_CHILD_SUBREAPER), so none can escape

The keeper exits with the exit code of the command, once everything that the command left behind is gone. `adopt=False`
is for a command whose children are to outlive it, each under a keeper of its own on the same lifeline. The keeper
passes SIGTERM and SIGINT on to the command only, which stops its children in its own order.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_DYING, _KEPT = "dying-with-parent", "kept"


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Returns `command` behind this script. Start it from a thread that outlives it."""
    return [*_script(_DYING), str(os.getpid()), *command]


def kept_command(command: Sequence[str], *, lifeline: int, adopt: bool = True) -> list[str]:
    """Returns `command` under a keeper. The caller starts it in a new session and passes the descriptor on."""
    return [*_script(_KEPT), str(lifeline), "adopt" if adopt else "leave", *command]


def _script(way: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), way]


def main(arguments: Sequence[str]) -> int:
    way, *rest = arguments
    if way == _DYING:
        return _become(int(rest[0]), rest[1:])
    return _keep(int(rest[0]), rest[2:], adopt=rest[1] == "adopt")


def _become(parent_pid: int, command: list[str]) -> int:
    _die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent_pid:  # the parent died before the call above
        return 1
    os.execvp(command[0], command)  # noqa: S606  # no shell wanted


def _keep(lifeline: int, command: list[str], *, adopt: bool) -> int:
    if adopt:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, poke = os.pipe()
    os.set_blocking(poke, False)
    signal.set_wakeup_fd(poke)
    pending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: pending.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake up
    try:
        child = subprocess.Popen(
            command,
            pass_fds=(lifeline,),  # the command may start keepers on the same lifeline
            preexec_fn=_die_with_parent,  # it must not outlive a killed keeper; with one thread no lock is held
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]} could not be started: {error}\n")
        return 127
    try:
        return _watch(child, lifeline, wakeup, pending)
    finally:
        _kill_descendants()


def _watch(child: "subprocess.Popen[bytes]", lifeline: int, wakeup: int, pending: list[int]) -> int:
    while True:
        ready, _, _ = select.select([lifeline, wakeup], [], [])
        if lifeline in ready:  # end of file: the owner is gone
            return 128 + signal.SIGKILL
        os.read(wakeup, 4096)
        while pending:
            child.send_signal(pending.pop(0))
        if (code := child.poll()) is not None:
            return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Raises: OSError. It does nothing outside Linux."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _kill_descendants() -> None:
    """Kills children until there are none. Orphans of a killed child become children of this process."""
    while children := _children():
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Returns direct children, zombies included. Without /proc it sends SIGTERM to the whole process group instead."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    if path.exists():
        return [int(pid) for pid in path.read_text().split()]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
