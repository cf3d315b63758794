"""`python -m workers.tasks.bound PARENT_PID COMMAND...`: becomes COMMAND, and dies with the process that started it.

Linux only: the kernel sends SIGKILL when the parent is gone, also when it was killed itself. The setting survives
exec; it is bound to the thread that started this process, so that thread must live as long as the child.
Elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    parent_pid, *command = arguments
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != int(parent_pid):  # it died before the call above
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  # no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
