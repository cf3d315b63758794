"""What is recorded of the day: its requests, streams and observations. All times are in Unix time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    name: str  # also the custom_id of the batch row that asks for the plain answer
    domain: str  # a workload of benchmarks.workloads
    body: Mapping[str, Any]  # of a chat completion, without `model`


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A request that was sent once, and what came back. It is never sent again."""

    request: str
    phase: str
    domain: str
    started_at: float
    ended_at: float
    first_token_seconds: float | None = None  # None: no token came
    acceptance_length: float | None = None
    answer: Answer | None = None  # None: the stream did not end whole
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The deployment at one time, as the API shows it."""

    at: float
    state: str
    replicas: int  # 0 while the deployment sleeps
    ready_replicas: int
    speculator: str | None
    alarm: str | None  # state of the acceptance alarm
    reference: float | None
    current: float | None


@dataclass(slots=True, kw_only=True)
class Day:
    """All observations. `as_json` is what the command writes."""

    machine: Mapping[str, Any]
    num_streams: int  # as planned
    started_at: float
    steps: list[tuple[str, float]] = field(default_factory=list)  # name and start of each step
    streams: list[Stream] = field(default_factory=list)
    plain: dict[str, Answer] = field(default_factory=dict)  # by request
    samples: list[Sample] = field(default_factory=list)
    events: Sequence[Mapping[str, Any]] = ()  # type, object_id, created_at
    ledger: Sequence[Mapping[str, Any]] = ()  # subject, ended_at, cost in USD
    first_speculator: str | None = None
    rounds: Sequence[Mapping[str, Any]] = ()
    worse_rollout: Mapping[str, Any] | None = None

    def of(self, *phases: str) -> list[Stream]:
        return [stream for stream in self.streams if stream.phase in phases]

    def step_at(self, name: str) -> float | None:
        """Returns when the step began; None: it was not reached."""
        return next((at for step, at in self.steps if step == name), None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Day":
        """Reads what `as_json` returned, also after a round trip through JSON. Unknown members are ignored."""
        known = {name: values[name] for name in cls.__slots__ if name in values}
        known["steps"] = [(name, at) for name, at in values["steps"]]
        known["samples"] = [Sample(**each) for each in values["samples"]]
        known["plain"] = {name: _answer(each) for name, each in values["plain"].items()}
        known["streams"] = [
            Stream(**{**each, "answer": each["answer"] and _answer(each["answer"])}) for each in values["streams"]
        ]
        return cls(**known)


def _answer(values: Mapping[str, Any]) -> Answer:
    return Answer(values["text"], values["finish_reason"], tuple(values["token_ids"]))


def mean_acceptance(streams: Sequence[Stream]) -> float | None:
    """Returns the harmonic mean: the tokens of equally long answers by their passes. None: nothing was measured."""
    passes = [1.0 / stream.acceptance_length for stream in streams if stream.acceptance_length]
    return len(passes) / sum(passes) if passes else None
