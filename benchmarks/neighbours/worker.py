"""Runs the threads of a worker: its housekeeping and its sender of webhooks. The measurement itself claims the jobs.

python -m benchmarks.neighbours.worker     prints its process id, and ends when its standard input is closed
"""

import os
import sys


def main() -> None:
    import django

    django.setup()
    from workers.supervisor.worker import JobWorker

    JobWorker().start()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)  # ends at once, because a delivery to a dead receiver would wait for its deadline


if __name__ == "__main__":
    main()
