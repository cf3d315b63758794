"""A rank without a model, for tests of the parent process. `MODE` says how each rank behaves, as in `0:exit-3 1:wait`.

Each rank first writes its process id to FOLDER/RANK. Command line: FOLDER MODE...
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
