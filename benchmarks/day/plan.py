"""The plan of the day: how many streams each phase may use, their requests, and the options of the product.

    morning   word problems: a rush, for which a second replica is started, and then some requests a minute, from which
              the alarm learns the usual acceptance length
    wake      after an idle time in which the deployment went to sleep, one request wakes it
    shift     another domain, until the loop has begun a round and has captured enough requests
    canary    the loop's rollout of the new speculator
    shadow    the rollout of a deliberately worse speculator
    evening   what remains

A phase that needs fewer streams leaves them to the later ones. The windows and thresholds are the smallest ones that
the product allows, so that everything fits into 20 minutes. A service would use larger ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.day.records import Request
from benchmarks.workloads.generators import prompts

ENDPOINT = "day"
MORNING, AFTERNOON = "problems", "json"
NUM_STREAMS = 200
MIN_STREAMS = 20
DISTILLED, HELD_OUT = 96, 8  # prompts of the first speculator
_SEED = 20261127
PRICE_PER_HOUR = 1.0  # USD for a device

# The draft budget is fixed, so that the acceptance length depends on speculator and prompts, but not on the load.
ENGINE: Mapping[str, Any] = {"draft_budget": 16, "max_context": 1024, "max_concurrency": 8}
PLAIN_ENGINE: Mapping[str, Any] = {"drafting": "none", "max_context": 1024}
SCALING: Mapping[str, Any] = {
    "max_replicas": 2,
    "target_concurrency": 3,
    "scale_up_seconds": 2,
    "scale_down_seconds": 60,
    "scale_to_zero_seconds": 25,
}
ALARM: Mapping[str, Any] = {"reference_minutes": 3}
# Only heads that read the hidden state alone can be exported, changed and imported again.
HEADS: Mapping[str, Any] = {"token_input": False, "export_as": "medusa"}
_ALL_STEPS: Mapping[str, Any] = {"epochs": 10_000, "patience": 0}
# Steps instead of seconds, so that the speculators do not depend on the load of the machine.
TRAINING: Mapping[str, Any] = {"kind": "medusa", "max_steps": 240, **_ALL_STEPS, **HEADS}
# With 25 requests on each side and alpha 0.5, the test tells only much worse speculators from better ones.
_CANARY: Mapping[str, Any] = {
    "share_percent": 50,
    "min_requests": 10,
    "max_acceptance_drop": 0.75,
    "alpha": 0.5,
    "max_seconds": 3600,
}
SHADOW: Mapping[str, Any] = {**_CANARY, "mode": "shadow", "max_acceptance_drop": 0.0}

# The shares of the streams that the phases up to this one may use together.
_SHARES = {"rush": 0.10, "morning": 0.23, "wake": 0.235, "shift": 0.39, "canary": 0.66, "shadow": 0.99, "evening": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    num_streams: int = NUM_STREAMS
    max_tokens: int = 64
    per_minute: float = 9.0  # streams in the morning and after the shift
    concurrency: int = 4  # of open streams, except in the rush
    rush_concurrency: int = 8

    def __post_init__(self) -> None:
        if self.num_streams < MIN_STREAMS:
            raise ValueError(f"a day needs at least {MIN_STREAMS} streams, got {self.num_streams}")

    def limit(self, phase: str) -> int:
        """Returns how many streams the day may have used when the phase ends."""
        return round(self.num_streams * _SHARES[phase])

    def requests(self, domain: str) -> Iterator[Request]:
        """Yields distinct requests, as many as the whole day needs. None of them trained the first speculator."""
        for number, prompt in enumerate(prompts(domain, self.num_streams, seed=_SEED)):
            yield Request(name=f"{domain}-{number:04}", domain=domain, body=self.body(prompt))

    def distilled(self) -> Iterator[Request]:
        """Yields the prompts of the first speculator, which are word problems too."""
        for number, prompt in enumerate(prompts(MORNING, self.num_streams + DISTILLED, seed=_SEED)[self.num_streams :]):
            yield Request(name=f"distill-{number:04}", domain=MORNING, body=self.body(prompt))

    def body(self, prompt: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"messages": messages, "max_tokens": self.max_tokens, "temperature": 0, "return_token_ids": True}

    def loop(self) -> dict[str, Any]:
        """Returns the settings of the loop."""
        num_shift = self.limit("shift") - self.limit("wake")
        rows = max(20, num_shift * 9 // 10)
        return {
            "triggers": {"acceptance_drop": True},
            "limits": {"min_seconds_between_rounds": 0, "max_rows": max(rows, num_shift)},
            "recipe": {
                "min_rows": rows,
                "held_out": rows // 4,
                "max_capture_seconds": 3600,
                "hyperparameters": {"max_steps": 160, **_ALL_STEPS, **HEADS},
                "evaluation": {"concurrencies": [1], "max_tokens": self.max_tokens},
            },
            # The speed is measured while everything else runs, so only the acceptance length decides.
            "gate": {"min_acceptance_gain": 0.05, "min_speedup": 0.0, "outputs_equal": True},
            "rollout": dict(_CANARY),
        }
