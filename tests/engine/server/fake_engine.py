"""`FakeEngine` stands in for the engine in tests of the server: a script gives its answers and failures."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.counters import Counters
from engine.drafters.base import Drafter
from engine.drafters.none import NoDrafter
from engine.errors import AdapterNotLoadable
from engine.fingerprint import Fingerprint
from engine.lora.adapters import LoraAdapter
from engine.models.quantized.report import WeightsReport
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.row_invariance import EXACT

Script = Callable[[Request], Sequence[int]]


def echo(request: Request) -> Sequence[int]:
    """Returns the prompt as the answer."""
    return request.prompt_token_ids


class FakeAdapters:
    """Loads an adapter from any folder, except from a folder that is called "broken"."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoraAdapter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def read(self, name: str, folder: Path) -> LoraAdapter:
        if folder.name == "broken":
            raise AdapterNotLoadable("the folder holds no adapter")
        return LoraAdapter(name, (), "ab" * 32)

    def put(self, adapter: LoraAdapter) -> None:
        self._loaded[adapter.name] = adapter

    def unload(self, name: str) -> None:
        del self._loaded[name]


class FakeEngine:
    """Returns `tokens_per_step` tokens of each answer in each step.

    poison: a step raises an error if a prompt contains this token and its answer has at least `poison_at` tokens.
    gate: steps wait while this event is cleared.
    endless: each answer repeats its last token until the request is cancelled.
    """

    max_seq_len = 512
    eos_token_ids = frozenset({2})

    def __init__(
        self,
        script: Script = echo,
        *,
        tokens_per_step: int = 2,
        max_batch_size: int = 4,
        poison: int | None = None,
        poison_at: int = 2,
        endless: bool = False,
    ) -> None:
        self.max_prompt = 100
        self.requested_adapters: list[str] = []
        self.cancelled: list[str] = []
        self.added: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.broken = False  # if True, every step raises
        self._script = script
        self._tokens_per_step = tokens_per_step
        self._max_batch_size = max_batch_size
        self._poison = poison
        self._poison_at = poison_at
        self._endless = endless
        self._requests: dict[str, Request] = {}
        self._done: dict[str, int] = {}  # request id -> number of tokens returned so far
        self._ended: list[StepOutput] = []  # last outputs of cancelled requests, which the next step returns
        self.counters = Counters()
        self.drafter: Drafter = NoDrafter()
        self.adapters = FakeAdapters()
        self.row_invariance = EXACT
        self.weights_report = WeightsReport("awq int4", "bfloat16 (widened)")

    def fingerprint(self, adapter: str | None = None) -> Fingerprint | None:
        return None

    def swap_drafter(self, drafter: Drafter) -> None:
        self.drafter = drafter

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._ended)

    @property
    def num_running(self) -> int:
        return min(len(self._requests), self._max_batch_size)

    @property
    def num_waiting(self) -> int:
        return len(self._requests) - self.num_running

    def add(self, request: Request) -> None:
        if len(request.prompt_token_ids) > self.max_prompt:
            raise ValueError(f"prompt may have {self.max_prompt} tokens, got {len(request.prompt_token_ids)}")
        self.requested_adapters += [request.adapter] if request.adapter else []
        self.added.append(request.request_id)
        self._requests[request.request_id] = request
        self._done[request.request_id] = 0

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if self._requests.pop(request_id, None) is not None:
            self._ended.append(StepOutput(request_id, (), None, FinishReason.CANCELLED, SpeculationStats()))

    def step(self) -> list[StepOutput]:
        self.in_step.set()
        self.gate.wait()
        if self.broken:
            raise RuntimeError("the device is lost")
        outputs, self._ended = self._ended, []
        batch = list(self._requests.values())[: self._max_batch_size]
        for request in batch:
            if self._poison in request.prompt_token_ids and self._done[request.request_id] >= self._poison_at:
                raise RuntimeError("a poisoned request")
        return outputs + [self._output_of(request) for request in batch]

    def _output_of(self, request: Request) -> StepOutput:
        done = self._done[request.request_id]
        self.counters.record(drafted=2, accepted=self._tokens_per_step - 1)
        if self._endless:
            tokens_of_script = list(self._script(request))
            answer = tokens_of_script + tokens_of_script[-1:] * (done + self._tokens_per_step + 1)
        else:
            answer = [*self._script(request), *self.eos_token_ids][: request.sampling.max_tokens]
        tokens = tuple(answer[done : done + self._tokens_per_step])
        self._done[request.request_id] = done + len(tokens)
        finish_reason = None
        if done + len(tokens) == len(answer):
            finish_reason = FinishReason.STOP if answer[-1] in self.eos_token_ids else FinishReason.LENGTH
            del self._requests[request.request_id]
        logprobs = None
        if (num_top := request.sampling.num_logprobs) is not None:
            logprobs = tuple(TokenLogprob(t, -0.5, tuple((t + k, -0.5 - k) for k in range(num_top))) for t in tokens)
        stats = SpeculationStats(num_spec_steps=4, num_draft_tokens=6, num_accepted_draft_tokens=3, num_spec_tokens=2)
        stats.num_cached_tokens = len(request.prompt_token_ids) - 1
        stats.acceptance_histogram = [2, 1, 1]
        return StepOutput(request.request_id, tokens, logprobs, finish_reason, stats if finish_reason else None)
