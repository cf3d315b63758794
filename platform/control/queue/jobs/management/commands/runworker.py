"""`manage.py runworker` runs a worker that polls the job table and needs no Redis.

The control plane never imports `workers.supervisor`, so this process replaces itself with the worker.
"""

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs jobs by polling the database; `celery -A workers.celery_app worker` does the same over Redis."

    def handle(self, *args: Any, **options: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        os.execve(sys.executable, [sys.executable, "-m", "workers.supervisor"], environment)  # noqa: S606  # no shell wanted
