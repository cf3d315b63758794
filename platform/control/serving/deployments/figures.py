"""Metrics of a deployment over time: the figures of each period, computed from samples of counters.

acceptance length = 1 + accepted tokens / drafts       acceptance rate = accepted tokens / draft tokens
tokens per second = generated tokens of all replicas / seconds between the period's samples
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from control.billing.usage.selectors import Window
from control.serving.deployments.measuring import COUNTERS
from control.serving.deployments.models import Deployment, DeploymentSample

LOOKBACK = dt.timedelta(minutes=10)  # the first difference in a window may begin this long before the window


@dataclass(slots=True)
class PeriodFigures:
    counts: Counter[str] = field(default_factory=Counter)  # the increase of each counter within the period
    seconds: float = 0.0  # the time that the samples cover

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
        """The mean latency of the requests."""
        return self._ratio("latency_seconds", "requests")

    @property
    def first_token_seconds(self) -> float | None:
        return self._ratio("first_token_seconds", "first_tokens")

    def _ratio(self, numerator: str, denominator: str) -> float | None:
        return self.counts[numerator] / self.counts[denominator] if self.counts[denominator] else None


def figures_by_bucket(deployment: Deployment, window: Window) -> dict[dt.datetime, PeriodFigures]:
    """Maps the start of each bucket in the window to the bucket's figures, also for buckets without samples."""
    buckets = {start: PeriodFigures() for start in window.starts()}
    samples = DeploymentSample.objects.filter(
        deployment=deployment, at__gte=window.start - LOOKBACK, at__lt=window.end
    ).order_by("at", "pk")
    width = window.width.seconds
    for at, counts, seconds in _differences(samples):
        begins = dt.datetime.fromtimestamp(at.timestamp() // width * width, dt.UTC)
        if begins in buckets:
            buckets[begins].add(counts, seconds)
    return buckets


def figures_since(deployment: Deployment, since: dt.datetime) -> PeriodFigures:
    """Returns the figures of the time from `since` until the latest sample."""
    whole = PeriodFigures()
    for _, counts, seconds in _differences(
        DeploymentSample.objects.filter(deployment=deployment, at__gte=since).order_by("at", "pk")
    ):
        whole.add(counts, seconds)
    return whole


def _differences(samples: Iterable[DeploymentSample]) -> Iterator[tuple[dt.datetime, Counter[str], float]]:
    """Yields the difference of each pair of successive samples of one process.

    A difference consists of the time of the later sample, the increase of each counter, and the seconds between the two
    samples. Seconds that a pair of another process already covers are left out.
    """
    latest: dict[str, DeploymentSample] = {}  # by process
    covered_until: dt.datetime | None = None
    for after in samples:
        before = latest.get(after.process)
        latest[after.process] = after
        if before is not None:
            increase = {name: after.counters.get(name, 0.0) - before.counters.get(name, 0.0) for name in COUNTERS}
            since = before.at if covered_until is None else max(before.at, covered_until)
            covered_until = after.at
            yield after.at, Counter(increase), (after.at - since).total_seconds()
