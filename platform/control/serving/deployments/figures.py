"""Metrics of a deployment over time: the figures of a period (`Stretch`), computed from samples of counters.

acceptance length = 1 + accepted tokens / drafts       acceptance rate = accepted tokens / draft tokens
tokens per second = generated tokens / seconds between the period's samples
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from control.billing.usage.selectors import Window
from control.serving.deployments.measuring import COUNTERS
from control.serving.deployments.models import Deployment, DeploymentSample

BEFORE = dt.timedelta(minutes=10)  # the first difference in a window may use a sample from this long before the window


@dataclass(slots=True)
class Stretch:
    """The figures of a period. `counts`: the increase of each counter; `seconds`: the time that the samples cover."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, counts: Counter[str], seconds: float) -> None:
        self.counts.update(counts)
        self.seconds += seconds

    @property
    def num_requests(self) -> int:
        return round(self.counts["requests"])

    @property
    def acceptance_length(self) -> float | None:
        ratio = self._ratio("accepted_tokens", "drafts")
        return None if ratio is None else 1.0 + ratio

    @property
    def acceptance_rate(self) -> float | None:
        return self._ratio("accepted_tokens", "draft_tokens")

    @property
    def tokens_per_second(self) -> float | None:
        return self.counts["generation_tokens"] / self.seconds if self.seconds else None

    @property
    def latency_seconds(self) -> float | None:
        """Average latency of a request."""
        return self._ratio("latency_seconds", "requests")

    @property
    def first_token_seconds(self) -> float | None:
        return self._ratio("first_token_seconds", "first_tokens")

    def _ratio(self, numerator: str, denominator: str) -> float | None:
        return self.counts[numerator] / self.counts[denominator] if self.counts[denominator] else None


def stretches(deployment: Deployment, window: Window) -> dict[dt.datetime, Stretch]:
    """Maps the start of each bucket of the window to its figures, also for buckets without samples."""
    found = {start: Stretch() for start in window.starts()}
    samples = DeploymentSample.objects.filter(
        deployment=deployment, at__gte=window.start - BEFORE, at__lt=window.end
    ).order_by("at", "pk")
    width = window.width.seconds
    for at, counts, seconds in _differences(samples):
        begins = dt.datetime.fromtimestamp(at.timestamp() // width * width, dt.UTC)
        if begins in found:
            found[begins].add(counts, seconds)
    return found


def stretch_since(deployment: Deployment, since: dt.datetime) -> Stretch:
    """The sum of all differences between samples since then."""
    whole = Stretch()
    for _, counts, seconds in _differences(
        DeploymentSample.objects.filter(deployment=deployment, at__gte=since).order_by("at", "pk")
    ):
        whole.add(counts, seconds)
    return whole


def _differences(samples: Iterable[DeploymentSample]) -> Iterator[tuple[dt.datetime, Counter[str], float]]:
    """Yields for two successive samples of one process the time of the later one, the increase of the counters, and
    the seconds between the two.
    """
    for before, after in pairwise(samples):
        if before.process == after.process:
            increase = {name: after.counters.get(name, 0.0) - before.counters.get(name, 0.0) for name in COUNTERS}
            yield after.at, Counter(increase), (after.at - before.at).total_seconds()
