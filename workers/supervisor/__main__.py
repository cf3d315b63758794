"""`python -m workers.supervisor`: a worker that polls for jobs. `manage.py runworker` becomes this process."""

import os
import signal
from types import FrameType

import django

from workers.parent_death import hide_memory_and_environment


def main() -> None:
    hide_memory_and_environment()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")
    django.setup()
    from workers.supervisor.worker import JobWorker  # imported here, because it needs Django's models

    worker = JobWorker()

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    worker.start()
    try:
        worker.poll_forever()
    finally:
        worker.close()


if __name__ == "__main__":
    main()
