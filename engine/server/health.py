"""Checks that this process can generate tokens: a request got a token recently, or the check generates one."""

import asyncio
import time
from uuid import uuid4

from engine.fields import InvalidRequest
from engine.request import Request, SamplingParams
from engine.server.async_engine import AsyncEngine
from engine.server.errors import ServerFault
from engine.server.worker import EngineWorker

FRESH_SECONDS = 5.0  # a token generated within this time proves that the process is healthy
PROBE_SECONDS = 30.0  # time limit for the token that the check generates
# A step counts as hung if it takes much longer than any earlier step. Steps that prefill a prompt may take seconds on a
# slow CPU, and the first steps load the model's pages into memory, so there is a minimum.
STALL_FACTOR = 20
STALL_SECONDS = (10.0, 60.0)  # minimum and maximum of the limit
MIN_OBSERVED_STEPS = 200  # with fewer steps, the longest step is not representative


class Health:
    def __init__(self, async_engine: AsyncEngine) -> None:
        self.draining = False
        self._async_engine = async_engine
        self._probe: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """Returns why the process is not healthy, or None. Generates one token if no request got one recently."""
        worker = self._async_engine.worker
        if self.draining:
            return "draining"
        if worker.broken:
            return f"the engine is broken: {worker.broken}"
        if self._async_engine.refuses:
            return None  # the engine sleeps, and generates no token until it is woken
        now = time.monotonic()
        if now - worker.last_token_at < FRESH_SECONDS:
            return None
        if self._async_engine.num_open and self._probe is None:
            stalled, limit = now - worker.last_step_at, stall_limit(worker)
            return None if stalled < limit else f"no step for {stalled:.0f} s, the limit is {limit:.0f}"
        # Concurrent health checks share the task, so the task must not end when one of their clients disconnects.
        if self._probe is None:
            self._probe = asyncio.create_task(self._generate_token())
            self._probe.add_done_callback(lambda _: setattr(self, "_probe", None))
        return await asyncio.shield(self._probe)

    async def _generate_token(self) -> str | None:
        prompt = (min(self._async_engine.worker.engine.eos_token_ids, default=0),)
        request = Request(f"health-{uuid4().hex}", prompt, SamplingParams(max_tokens=1, temperature=0.0))
        generation = self._async_engine.open([request], is_check=True)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                while generation.num_open:
                    await generation.next()
        except TimeoutError:
            return f"no token within {PROBE_SECONDS:.0f} s"
        except (InvalidRequest, ServerFault) as error:
            return f"no token: {error.message}"
        finally:
            generation.close()
        return None


def stall_limit(worker: EngineWorker) -> float:
    """Returns the number of seconds without a finished step after which the engine counts as hung."""
    minimum, maximum = STALL_SECONDS
    if worker.in_call or worker.reads_prompts or worker.num_steps < MIN_OBSERVED_STEPS:
        return maximum
    return min(maximum, max(minimum, STALL_FACTOR * worker.longest_step_seconds))
