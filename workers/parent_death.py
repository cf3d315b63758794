"""Runs commands without new privileges. In two of three modes, a command does not outlive the process that started it.

In these two modes, the command ends even if that process is killed with SIGKILL. All modes run this file as a script,
which is why it imports the standard library only. In each mode, the command can gain no privileges by exec
(PR_SET_NO_NEW_PRIVS), and runs as another user if `uid` is given.

`unprivileged`: the script only gives up privileges, and then becomes the command by exec. The command may outlive its
parent.

`dying_with_parent`: the script asks the kernel to send it SIGKILL when its parent dies (PR_SET_PDEATHSIG, a setting
that survives exec), and then becomes the command by exec. The kernel's "parent" is the thread that started the script,
so that thread must live as long as the command. Only Linux has this setting. On other systems, the command may outlive
its parent.

`kept_command`: a keeper process watches a pipe (the lifeline). The owner is the process that the command must not
outlive; it keeps the write end open and never writes. When the owner ends, the read end reports end of file, and the
keeper kills the command and its descendants.

    owner ── lifeline ──> keeper ──> command ──> its children
                            └ adopts orphans of the command (Linux: PR_SET_CHILD_SUBREAPER), so none can escape

When the command ends, the keeper kills the processes that the command left running, and exits with the command's exit
code. `adopt=False` is for a command whose children should outlive it, each under its own keeper on the same lifeline.
The keeper forwards SIGTERM and SIGINT to the command only, so that the command can stop its children in its own order.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_UNPRIVILEGED, _DYING, _KEPT = "unprivileged", "dying-with-parent", "kept"
_SAME_USER = "same-user"


def unprivileged(command: Sequence[str], *, uid: int | None = None) -> list[str]:
    """Returns a command line that runs `command` through this script in the mode `unprivileged`."""
    return [*_script(_UNPRIVILEGED, uid), *command]


def dying_with_parent(command: Sequence[str], *, uid: int | None = None) -> list[str]:
    """Returns a command line that runs `command` in the mode `dying_with_parent`. The thread that starts it must
    outlive the command."""
    return [*_script(_DYING, uid), str(os.getpid()), *command]


def kept_command(command: Sequence[str], *, lifeline: int, adopt: bool = True, uid: int | None = None) -> list[str]:
    """Returns a command line that runs `command` under a keeper. The keeper runs as the user of its parent.

    The caller starts it in a new session, with the file descriptor `lifeline` in `pass_fds`.
    """
    return [*_script(_KEPT, uid), str(lifeline), "adopt" if adopt else "leave", *command]


def hide_memory_and_environment() -> None:
    """Hides /proc/PID/environ and the memory of this process from other processes of the same user, except root.

    A process that holds a password calls this when it starts. Programs that it executes are not hidden.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def _script(mode: str, uid: int | None) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), mode, _SAME_USER if uid is None else str(uid)]


def main(arguments: Sequence[str]) -> int:
    mode, user, *rest = arguments
    uid = None if user == _SAME_USER else int(user)
    if mode == _UNPRIVILEGED:
        _drop_privileges(uid)
        os.execvp(rest[0], rest)  # noqa: S606  # no shell wanted
    if mode == _DYING:
        return _become(int(rest[0]), rest[1:], uid)
    return _keep(int(rest[0]), rest[2:], adopt=rest[1] == "adopt", uid=uid)


def _become(parent_pid: int, command: list[str], uid: int | None) -> int:
    _drop_privileges(uid)
    _die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent_pid:  # the parent died before the call above
        return 1
    os.execvp(command[0], command)  # noqa: S606  # no shell wanted


def _drop_privileges(uid: int | None) -> None:
    """Forbids new privileges and changes the user. Must be called before `_die_with_parent`, because the kernel clears
    PR_SET_PDEATHSIG when the user changes."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _keep(lifeline: int, command: list[str], *, adopt: bool, uid: int | None) -> int:
    hide_memory_and_environment()  # the environment of a command may hold a password
    if adopt:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, poke = os.pipe()
    os.set_blocking(poke, False)
    signal.set_wakeup_fd(poke)
    pending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: pending.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, SIGCHLD would not wake the select

    def prepare() -> None:
        _drop_privileges(uid)
        _die_with_parent()

    try:
        child = subprocess.Popen(
            command,
            pass_fds=(lifeline,),  # the command may start keepers on the same lifeline
            # `prepare` makes the command die even if the keeper itself is killed. preexec_fn is safe here, because this
            # process has only one thread.
            preexec_fn=prepare,
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
        if lifeline in ready:  # end of file: the owner has ended
            return 128 + signal.SIGKILL
        os.read(wakeup, 4096)
        while pending:
            child.send_signal(pending.pop(0))
        if (code := child.poll()) is not None:
            return code if code >= 0 else 128 - code


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """Does nothing outside Linux. Raises: OSError."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _kill_descendants() -> None:
    """Kills children until there are none. The loop is needed because the orphans of a killed child become children of
    this process."""
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
    """Returns the pids of direct children, including zombies.

    Effects: without /proc, the children are unknown; the whole process group gets SIGTERM, and the list is empty.
    """
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    if path.exists():
        return [int(pid) for pid in path.read_text().split()]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
