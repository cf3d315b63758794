"""The Celery app of a job worker that gets its messages through Redis: `celery -A workers.celery_app worker`.

A message contains a job id, but means only that some job is due: the database decides which job is next
(`control.queue.jobs.fair`). Messages may therefore be lost, and are acknowledged before the task runs. When late
acknowledgement was tested, Celery's Redis transport lost a message for good because a worker died between two Redis
commands, ran one long task five times, and restarted a crashing task 173 times in 25 s.

The pool is `solo`: the task runs in the process that receives Celery's signals. If that process is killed, the child
process of the job dies with it. Run one worker process per GPU.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, worker_ready, worker_shutdown, worker_shutting_down

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")

from control.core.settings.config import get_config
from control.queue.jobs.wake import QUEUE, TASK_NAME, TRANSPORT_OPTIONS
from workers.parent_death import hide_memory_and_environment

_redis_url = get_config().redis_url

app = Celery("slipstream", broker=_redis_url.get_secret_value() if _redis_url else None)
app.conf.update(
    task_acks_late=False,
    task_reject_on_worker_lost=False,
    task_ignore_result=True,
    task_publish_retry=False,
    task_default_queue=QUEUE,
    task_serializer="json",
    accept_content=["json"],
    result_backend=None,
    worker_pool="solo",
    worker_concurrency=1,
    worker_disable_prefetch=True,
    worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=20,
    worker_enable_soft_shutdown_on_idle=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options=TRANSPORT_OPTIONS,
)


class _Process:
    """Holds this process's worker. The worker is created once Celery is ready."""

    worker: Any = None  # a JobWorker, whose module can only be imported after Django's models


@worker_ready.connect  # type: ignore[untyped-decorator]  # Celery has no types
def _start(**_: object) -> None:
    from workers.supervisor.worker import JobWorker

    _Process.worker = JobWorker()
    _Process.worker.start()


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _hide(**_: object) -> None:
    hide_memory_and_environment()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _drain(**_: object) -> None:
    if _Process.worker is not None:
        _Process.worker.stop.set()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _close(**_: object) -> None:
    if _Process.worker is not None:
        _Process.worker.close()


@app.task(name=TASK_NAME, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work_on_next_job(job_id: str, **later: object) -> None:
    """Works on the next due job, which need not be `job_id`: many messages of one tenant must not delay another tenant.

    Args:
        later: arguments that a newer release may add while both releases run.
    """
    assert _Process.worker is not None, "tasks run in a worker only"
    _Process.worker.claim_next()
