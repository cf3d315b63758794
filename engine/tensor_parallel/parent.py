"""`python -m engine.tensor_parallel.parent DEGREE MODULE ARGUMENT...` runs `python -m MODULE ARGUMENT...` as a group.

The parent process starts one process per rank. When a rank ends, the parent ends the whole group, because the other
ranks would wait for the missing rank forever. If rank 0 ends by itself, the parent exits with the status of rank 0. If
another rank ends, or rank 0 is killed, the parent prints {"event": "failed", "code": "rank_lost", "message"} and exits
with status 1. Only rank 0 writes to standard output, and the parent forwards signals to rank 0. Standard library only.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

from workers.parent_death import dying_with_parent

PARENT_MODULE = "engine.tensor_parallel.parent"
RANK_VARIABLE = "SLIPSTREAM_ENGINE_RANK"
RENDEZVOUS_VARIABLE = "SLIPSTREAM_ENGINE_RENDEZVOUS"  # a folder in which the ranks find each other
LOST_GROUP = 70  # exit status of a rank that ends because another rank has ended
_CAUSE_SECONDS = 3.0  # after a rank has ended with LOST_GROUP, the time to wait for the end of the rank that caused it


def in_group() -> bool:
    """Returns whether this process is a rank that the parent process has started."""
    return RANK_VARIABLE in os.environ


def group_rank() -> int:
    """Returns the rank of this process in its group."""
    return int(os.environ[RANK_VARIABLE])


def main(arguments: Sequence[str]) -> int:
    degree, command = int(arguments[0]), [sys.executable, "-m", *arguments[1:]]
    with tempfile.TemporaryDirectory(prefix="slipstream-ranks-") as folder:
        # The kernel kills the ranks when this thread, which starts them, ends.
        ranks = [_start(command, rank, folder, degree) for rank in range(degree)]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: ranks[0].send_signal(received))
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        for rank, process in enumerate(ranks):
            threading.Thread(target=_watch, args=(rank, process, ended), daemon=True).start()
        rank = first_to_end(lambda index: ranks[index].returncode, ended)
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()
    status = ranks[rank].returncode
    if rank == 0 and status >= 0 and status != LOST_GROUP:  # if this is a failure, rank 0 has reported it
        return status
    print(json.dumps({"event": "failed", "code": "rank_lost", "message": _reason(rank, degree, status)}), flush=True)
    return 1


def _start(command: Sequence[str], rank: int, folder: str, degree: int) -> "subprocess.Popen[bytes]":
    threads = str(max(1, _num_cores() // degree))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, RANK_VARIABLE: str(rank), RENDEZVOUS_VARIABLE: folder}
    return subprocess.Popen(
        dying_with_parent(command),
        env=environment,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches rank 0 through this process only
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _watch(rank: int, process: "subprocess.Popen[bytes]", ended: "queue.SimpleQueue[int]") -> None:
    process.wait()
    ended.put(rank)


def first_to_end(status_of: Callable[[int], int | None], ended: "queue.SimpleQueue[int]") -> int:
    """Waits until a rank ends, and returns the rank that caused the end of the group.

    Ranks with the status LOST_GROUP are skipped. If no other rank ends within `_CAUSE_SECONDS`, the rank that ended
    first is the cause.

    status_of: returns the exit status of a rank that has ended.
    ended: receives the ranks in the order in which they end.
    """
    first = rank = ended.get()
    try:
        while status_of(rank) == LOST_GROUP:
            rank = ended.get(timeout=_CAUSE_SECONDS)
    except queue.Empty:
        return first
    return rank


def _reason(rank: int, degree: int, status: int) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"rank {rank} of {degree} {how}, so the group was ended"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
