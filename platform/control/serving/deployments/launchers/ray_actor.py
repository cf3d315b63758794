"""The Ray actor of one engine. It runs on the engine's machine, starts the engine there, and waits for its end.

Ray's worker imports this file before Django is set up, so no module of ours is imported at the top. The actor keeps the
write end of the engine's lifeline (workers/parent_death.py): however the actor ends, its engine ends too.

Methods return values of JSON, because the supervisor that calls them may belong to another release.
"""

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

# Variables that Ray sets for the actor, and that the engine must not inherit. OMP_NUM_THREADS is the actor's number of
# processors; without it, the engine chooses its number of threads as usual. PYTHONBREAKPOINT names Ray's debugger.
_RAYS_OWN = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")
_TIDY_SECONDS = 60.0
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


class EngineActor:
    """Args: order: see `ray_order`."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._lifeline, self._kept_open = os.pipe()
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="engine")
        self._endpoint: Any = None
        self._started: Future[dict[str, Any]] = self._threads.submit(self._start)
        self._ended: Future[dict[str, Any]] = self._threads.submit(self._wait)

    async def placed(self) -> bool:
        """Returns at once, which shows that Ray has found a machine for the actor."""
        return True

    async def started(self) -> dict[str, Any]:
        """Waits until the engine's process has been started. Returns its address, tokens and pid, or `code` and
        `message` of an error."""
        return await asyncio.shield(asyncio.wrap_future(self._started))

    async def ended(self) -> dict[str, Any]:
        """Waits until the engine has ended. Returns its exit code and the end of its log."""
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    async def drain(self) -> None:
        """Asks the engine to answer its open requests and then to end."""
        if self._endpoint is not None:
            self._endpoint.identity.terminate()

    async def log(self) -> str:
        text = await asyncio.get_running_loop().run_in_executor(self._threads, _unless_it_fails, self._log)
        return text or ""

    def _start(self) -> dict[str, Any]:
        import django
        import ray

        for name in _RAYS_OWN:
            os.environ.pop(name, None)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.base")
        django.setup()
        from control.serving.deployments.launchers.engine_process import start_for_actor
        from control.serving.deployments.launchers.interface import LaunchError
        from control.serving.deployments.launchers.ray_order import asks_for_tls, ordered

        host = str(ray.util.get_node_ip_address())
        device = ",".join(map(str, ray.get_gpu_ids()))
        try:
            self._endpoint = start_for_actor(
                ordered(self._order),
                device=device,
                host=host,
                lifeline=self._lifeline,
                uses_tls=asks_for_tls(self._order),
            )
        except (LaunchError, OSError) as error:
            failure = error if isinstance(error, LaunchError) else LaunchError(f"the engine cannot be started: {error}")
            return {"code": failure.code, "message": str(failure)}
        return {
            "host": host,
            "device": device,
            "pid": self._endpoint.identity.pid,
            "port": self._endpoint.port,
            "token": self._endpoint.token,
            "operator_token": self._endpoint.operator_token,
            "certificate": self._endpoint.certificate,
        }

    def _wait(self) -> dict[str, Any]:
        started = self._started.result()
        if self._endpoint is None:
            return {"exit_code": None, "log": started["message"]}
        while True:
            try:
                exit_code = self._endpoint.process.wait(_TIDY_SECONDS)
            except subprocess.TimeoutExpired:
                _unless_it_fails(self._limit_files)
            else:
                return {"exit_code": exit_code, "log": _unless_it_fails(self._log) or ""}

    def _limit_files(self) -> None:
        """Applies the machine's limits for logs, model copies and homes, as a supervisor does on its own machine."""
        from control.core.settings.config import get_config
        from control.serving.deployments.launchers.leftovers import limit_files

        limit_files(get_config())

    def _log(self) -> str:
        from control.core.settings.config import get_config
        from control.serving.deployments.launchers.engine_process import log_excerpt
        from control.serving.deployments.launchers.ray_order import ordered

        return log_excerpt(get_config(), ordered(self._order))


def _unless_it_fails(work: Callable[[], _Result]) -> _Result | None:
    """Returns the result of the work. An error is only logged, because the supervisor would take an exception for the
    end of the engine."""
    try:
        return work()
    except Exception:
        logger.exception("an engine's actor goes on without %s", work.__name__)
        return None
