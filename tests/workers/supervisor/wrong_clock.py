"""`python wrong_clock.py SECONDS` runs a worker that polls for jobs, with a clock that is wrong by SECONDS."""

import datetime as dt
import runpy
import sys
import time

from django.utils import timezone


def main() -> None:
    seconds = float(sys.argv.pop())
    right_time, right_now = time.time, timezone.now
    time.time = lambda: right_time() + seconds
    timezone.now = lambda: right_now() + dt.timedelta(seconds=seconds)
    runpy.run_module("workers.supervisor", run_name="__main__")


if __name__ == "__main__":
    main()
