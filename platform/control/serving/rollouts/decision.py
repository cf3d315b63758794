"""Decides whether the candidate's speculator replaces the current one. These functions read and write no database.

The candidate and the deployment (`stable`) serve requests of the same callers at the same time, so a change of the
traffic affects both of them. Each gate compares the two by confidence sequences (`sequential`), which hold at all times
at once. The gates may therefore be checked as often as one likes:

    acceptance     forward passes per generated token, the reciprocal of the acceptance length
    errors         the share of the requests that failed
    first_token    the share of the requests whose first token came later than a threshold
    inter_token    the share of the requests whose mean time between tokens exceeded a threshold
    equality       answers of the candidate that differ from the customers' answers (in mode `shadow`)

The probability that any gate with a confidence sequence ever says something false is at most `alpha`. The alpha is
divided equally between these gates and, in each gate, between the two processes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from control.serving.rollouts.sequential import Interval, Sums, bernoulli_interval, bounded_interval

Outcome = Literal["passed", "failed", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many of the measured requests had a property."""

    num: int = 0
    num_true: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the gateways have measured of the requests to the candidate, or to the deployment."""

    num_requests: int = 0  # complete answers
    num_failed: int = 0  # requests to which the engine gave no complete answer
    passes: Sums = field(default_factory=Sums)  # forward passes per generated token
    slow_first: Count = field(default_factory=Count)
    slow_inter: Count = field(default_factory=Count)
    num_equal: int = 0  # copies of requests whose answer was equal to the customer's answer
    num_different: int = 0
    num_not_comparable: int = 0
    num_dropped: int = 0  # copies that were not sent, because too many waited
    different_request: str = ""  # id of the first request whose answers differed

    @property
    def error_rate(self) -> float:
        total = self.num_requests + self.num_failed
        return self.num_failed / total if total else 0.0

    @property
    def acceptance_length(self) -> float | None:
        """The acceptance length, or None if nothing was measured."""
        return 1.0 / self.passes.mean if self.passes.mean else None

    def as_json(self) -> dict[str, Any]:
        return {
            "num_requests": self.num_requests,
            "num_failed": self.num_failed,
            "error_rate": self.error_rate,
            "acceptance_length": self.acceptance_length,
            "num_measured": self.passes.num,
            "num_timed": self.slow_first.num,
            "num_slow_first_token": self.slow_first.num_true,
            "num_slow_inter_token": self.slow_inter.num_true,
            "num_equal": self.num_equal,
            "num_different": self.num_different,
            "num_not_comparable": self.num_not_comparable,
            "num_dropped": self.num_dropped,
            "different_request_id": self.different_request or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The conditions under which the candidate's speculator is accepted. Limits named `max_` are shares from 0 to 1,
    except `max_requests`."""

    min_requests: int
    max_acceptance_drop: float
    max_error_rate: float
    alpha: float = 0.05
    first_token_seconds: float | None = None  # a later first token is slow; None: no such gate
    inter_token_seconds: float | None = None
    max_slow_increase: float = 0.02
    max_requests: int = 100_000  # number of requests to the candidate after which an undecided rollout ends
    on_undecided: Literal["promote", "roll_back"] = "roll_back"

    @classmethod
    def of(cls, source: object) -> Self:
        """Returns the terms of a rollout, or of a request for a rollout. They are attributes with the same names."""
        return cls(**{field.name: getattr(source, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    name: str
    outcome: Outcome
    is_required: bool  # whether a promotion needs the outcome `passed`; if not, `open` is enough
    code: str  # the code of the decision if the gate has failed
    message: str
    candidate: Interval | None = None
    stable: Interval | None = None

    def as_json(self) -> dict[str, Any]:
        members = asdict(self)
        del members["code"]
        return members


@dataclass(frozen=True, slots=True)
class Decision:
    kind: Literal["promote", "roll_back", "undecided"]
    code: str
    message: str


UNDECIDED = Decision("undecided", "undecided", "The evidence decides nothing yet.")


def gates_of(candidate: Evidence, stable: Evidence, terms: Terms, *, compares_answers: bool = False) -> list[Gate]:
    """Compares the candidate with the deployment. Args: compares_answers: whether any different answer is a failure."""
    num_gates = 2 + (terms.first_token_seconds is not None) + (terms.inter_token_seconds is not None)
    alpha = terms.alpha / (2 * num_gates)
    gates = [_acceptance(candidate, stable, terms, alpha), _errors(candidate, stable, terms, alpha)]
    for name, threshold, new, current in (
        ("first_token", terms.first_token_seconds, candidate.slow_first, stable.slow_first),
        ("inter_token", terms.inter_token_seconds, candidate.slow_inter, stable.slow_inter),
    ):
        if threshold is not None:
            gates.append(_slow(name, threshold, new, current, terms, alpha))
    if compares_answers:
        gates.append(_equality(candidate, terms))
    return gates


def decide(candidate: Evidence, gates: Sequence[Gate], terms: Terms) -> Decision:
    """Rolls back as soon as a gate has failed. Promotes if the candidate has enough requests and no required gate is
    open."""
    for gate in gates:
        if gate.outcome == "failed":
            return Decision("roll_back", gate.code, gate.message)
    if candidate.num_requests + candidate.num_failed < terms.min_requests:
        return UNDECIDED
    if any(gate.is_required and gate.outcome == "open" for gate in gates):
        return UNDECIDED
    return Decision("promote", "accepted", " ".join(gate.message for gate in gates if gate.is_required))


def decide_at_end(candidate: Evidence, gates: Sequence[Gate], terms: Terms, limit: str) -> Decision:
    """Decides about a rollout that is still undecided when it reaches its limit of time or of requests.

    Args: limit: names the limit that was reached.
    """
    num_requests = candidate.num_requests + candidate.num_failed
    if num_requests < terms.min_requests:
        message = f"The candidate answered only {num_requests} of {terms.min_requests} requests within {limit}."
        return Decision("roll_back", "too_few_requests", message)
    still_open = [gate.name for gate in gates if gate.is_required and gate.outcome == "open"]
    message = f"Not decided within {limit}: {', '.join(still_open)}. on_undecided is {terms.on_undecided}."
    if terms.on_undecided == "promote" and "equality" not in still_open:
        return Decision("promote", "undecided", message)
    return Decision("roll_back", "undecided", message)


def _acceptance(candidate: Evidence, stable: Evidence, terms: Terms, alpha: float) -> Gate:
    new, current = bounded_interval(candidate.passes, alpha), bounded_interval(stable.passes, alpha)
    tolerated = 1.0 - terms.max_acceptance_drop
    outcome: Outcome = "open"
    if new.high * tolerated <= current.low:
        outcome = "passed"
    elif new.low * tolerated > current.high:
        outcome = "failed"
    lengths = [_length(candidate), _length(stable), f"{terms.max_acceptance_drop:.1%}"]
    message = "The candidate's acceptance length is {}, the current speculator's is {}. At most {} less is accepted."
    return Gate(
        name="acceptance",
        outcome=outcome,
        is_required=True,
        code="acceptance_dropped",
        message=message.format(*lengths),
        candidate=new,
        stable=current,
    )


def _errors(candidate: Evidence, stable: Evidence, terms: Terms, alpha: float) -> Gate:
    new, current = (
        bernoulli_interval(each.num_failed, each.num_requests + each.num_failed, alpha) for each in (candidate, stable)
    )
    # Before the deployment's first request its interval says nothing, and only `max_error_rate` limits the candidate.
    upper = current.high if stable.num_requests + stable.num_failed else 0.0
    message = (
        f"{candidate.error_rate:.1%} of the candidate's requests and {stable.error_rate:.1%} of the deployment's "
        f"failed. The larger of {terms.max_error_rate:.1%} and the deployment's share is the limit."
    )
    return Gate(
        name="errors",
        outcome=_share_outcome(new, low=terms.max_error_rate, high=max(terms.max_error_rate, upper)),
        is_required=False,
        code="too_many_errors",
        message=message,
        candidate=new,
        stable=current,
    )


def _slow(name: str, threshold: float, candidate: Count, stable: Count, terms: Terms, alpha: float) -> Gate:
    new, current = (bernoulli_interval(each.num_true, each.num, alpha) for each in (candidate, stable))
    tolerated = terms.max_slow_increase
    what = {"first_token": "First token", "inter_token": "Mean time between tokens"}[name]
    slow_new, slow_current = (f"{each.num_true} of {each.num}" for each in (candidate, stable))
    return Gate(
        name=name,
        outcome=_share_outcome(new, low=current.low + tolerated, high=current.high + tolerated),
        is_required=False,
        code=f"slow_{name}",
        message=f"{what} over {threshold:g} s: {slow_new} streams of the candidate, {slow_current} of the deployment.",
        candidate=new,
        stable=current,
    )


def _equality(candidate: Evidence, terms: Terms) -> Gate:
    outcome: Outcome = "open"
    if candidate.num_different:
        outcome = "failed"
    elif candidate.num_equal >= terms.min_requests:
        outcome = "passed"
    num_compared = candidate.num_equal + candidate.num_different
    message = f"{candidate.num_different} of {num_compared} compared answers differed from the customers' answers."
    return Gate(name="equality", outcome=outcome, is_required=True, code="answers_differ", message=message)


def _share_outcome(candidate: Interval, *, low: float, high: float) -> Outcome:
    """Args: low, high: the limit lies between them."""
    if candidate.low > high:
        return "failed"
    return "passed" if candidate.high <= low else "open"


def _length(evidence: Evidence) -> str:
    return "unknown" if evidence.acceptance_length is None else f"{evidence.acceptance_length:.3f}"
