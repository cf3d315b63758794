"""Decides whether the canary's speculator replaces the current one. These functions read and write no database.

Canary and deployment serve requests of the same callers at the same time, so a change of the traffic affects both.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the canary, or of the deployment that it belongs to, since the canary's first request."""

    num_requests: int
    num_failed: int  # requests that the gateway sent and to which the engine gave no complete answer
    acceptance_length: float | None  # None: nothing was drafted

    @property
    def error_rate(self) -> float:
        total = self.num_requests + self.num_failed
        return self.num_failed / total if total else 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "error_rate": self.error_rate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The conditions under which the canary's speculator is accepted. The two `max_` limits are shares from 0 to 1."""

    min_requests: int
    max_acceptance_drop: float
    max_error_rate: float


@dataclass(frozen=True, slots=True)
class Decision:
    is_promoted: bool
    code: str
    message: str


def decide(canary: Figures, stable: Figures, terms: Terms) -> Decision | None:
    """Compares the canary with the deployment (`stable`). Returns None while the canary has too few requests."""
    has_enough = canary.num_requests + canary.num_failed >= terms.min_requests
    max_error_rate = max(terms.max_error_rate, stable.error_rate)
    # True if the canary would fail even if all its remaining requests, up to `min_requests`, succeeded.
    has_failed = canary.num_failed > terms.max_error_rate * terms.min_requests
    if canary.error_rate > max_error_rate and (has_enough or has_failed):
        message = f"{canary.error_rate:.1%} of the canary's requests failed; at most {max_error_rate:.1%} may fail."
        return Decision(False, "too_many_errors", message)
    if not has_enough:
        return None
    # without drafts, the acceptance length is 1.0
    new, current = canary.acceptance_length or 1.0, stable.acceptance_length or 1.0
    required = current * (1.0 - terms.max_acceptance_drop)
    message = f"The canary's acceptance length is {new:.3f}, the current speculator's is {current:.3f}."
    if new < required:
        return Decision(False, "acceptance_dropped", f"{message} At least {required:.3f} is required.")
    return Decision(True, "accepted", message)
