"""Whether this process can generate a token, now: shown by one that it generated, never by HTTP answering alone."""

import asyncio
import time
from uuid import uuid4

from engine.fields import InvalidRequest
from engine.request import Request, SamplingParams
from engine.server.desk import Desk
from engine.server.errors import ServerFault
from engine.server.worker import EngineWorker

FRESH_SECONDS = 5.0  # a token this young is proof
PROBE_SECONDS = 30.0
# A step is taken for hung when it takes longer than any before it by far. That says little of one that reads a prompt,
# whose chunk takes seconds on a slow CPU, and of the first steps, which page the model in.
STALL_FACTOR = 20
STALL_SECONDS = (10.0, 60.0)  # never sooner, never later
NUM_TELLING_STEPS = 200


class Health:
    def __init__(self, desk: Desk) -> None:
        self.draining = False
        self._desk = desk
        self._probe: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """None when healthy. Generates one token where nothing else has lately."""
        worker = self._desk.worker
        if self.draining:
            return "draining"
        if worker.broken:
            return f"the engine is broken: {worker.broken}"
        now = time.monotonic()
        if now - worker.last_token_at < FRESH_SECONDS:
            return None
        if self._desk.num_open and self._probe is None:
            stalled, limit = now - worker.last_step_at, stall_limit(worker)
            return None if stalled < limit else f"no step for {stalled:.0f} s, the limit is {limit:.0f}"
        # Shared by all who ask meanwhile; shielded from the one whose client leaves.
        if self._probe is None:
            self._probe = asyncio.create_task(self._generate_token())
            self._probe.add_done_callback(lambda _: setattr(self, "_probe", None))
        return await asyncio.shield(self._probe)

    async def _generate_token(self) -> str | None:
        prompt = (min(self._desk.worker.engine.eos_token_ids, default=0),)
        request = Request(f"health-{uuid4().hex}", prompt, SamplingParams(max_tokens=1, temperature=0.0))
        generation = self._desk.open([request])
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
    """Seconds without a step from which on the engine is taken for hung."""
    shortest, longest = STALL_SECONDS
    if worker.in_call or worker.reads_prompts or worker.num_steps < NUM_TELLING_STEPS:
        return longest
    return min(longest, max(shortest, STALL_FACTOR * worker.longest_step_seconds))
