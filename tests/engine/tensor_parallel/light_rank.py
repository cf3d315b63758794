"""A rank without a model, for tests of the parent process. Command line: FOLDER MODE...

Each rank first writes its process id to FOLDER/RANK. Each MODE is RANK:ACTION, with one of these actions:

    wait         waits until it is killed
    exit-STATUS  exits at once with this status
    stop-STATUS  exits with this status when it receives SIGTERM
"""

import os
import signal
import sys
from pathlib import Path

from engine.tensor_parallel.parent import group_rank


def main() -> None:
    folder, modes = Path(sys.argv[1]), dict(argument.split(":") for argument in sys.argv[2:])
    rank = group_rank()
    action, _, value = modes[str(rank)].partition("-")
    stopped = signal.sigwait if action == "stop" else None
    if stopped:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    (folder / f"{rank}.new").write_text(str(os.getpid()))
    (folder / f"{rank}.new").rename(folder / str(rank))
    print(f"rank {rank} speaks", flush=True)
    if action == "exit":
        sys.exit(int(value))
    if stopped:
        stopped({signal.SIGTERM})
        sys.exit(int(value))
    signal.pause()


if __name__ == "__main__":
    main()
