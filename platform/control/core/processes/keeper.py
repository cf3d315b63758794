"""Runs a command that must not outlive its owner, however the owner ends. It runs as a script: standard library only.

The owner keeps the write end of a pipe (the lifeline) open and never writes. When the owner ends, even by `kill -9`,
the read end here reports end-of-file, and the keeper kills the command and all of its descendants.

    owner ── lifeline ──> keeper ──> command ──> its children
                            └ adopts orphans of the command (Linux: PR_SET_CHILD_SUBREAPER), so it can kill them too

When the command ends, the keeper kills the remaining descendants and exits with the same code. `adopt=False` is for a
command whose children may outlive it, each under its own keeper on the same lifeline. SIGTERM and SIGINT are passed on
to the command only, which stops its children itself.
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


def kept_command(command: Sequence[str], *, lifeline: int, adopt: bool = True) -> list[str]:
    """Returns the command line of a keeper. The caller starts it in a new session and passes the descriptor on."""
    return [sys.executable, str(Path(__file__).resolve()), str(lifeline), "adopt" if adopt else "leave", *command]


def main(arguments: list[str]) -> int:
    lifeline, adopt, command = int(arguments[0]), arguments[1] == "adopt", arguments[2:]
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
            preexec_fn=_die_with_parent,  # safe: this process has one thread, so no lock can be held
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
        if lifeline in ready:  # the owner is gone
            return 128 + signal.SIGKILL
        os.read(wakeup, 4096)
        while pending:
            child.send_signal(pending.pop(0))
        if (code := child.poll()) is not None:
            return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    """Runs between fork and exec, so that the command does not outlive a killed keeper either."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _kill_descendants() -> None:
    """Kills children until there are none: orphans of a killed child become children of this process."""
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
    """Returns direct children, zombies included. Without /proc it signals the whole process group instead."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    if path.exists():
        return [int(pid) for pid in path.read_text().split()]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
