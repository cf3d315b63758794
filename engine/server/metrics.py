"""Prometheus metrics with vLLM's names, so that dashboards and autoscalers for vLLM work with this server.

acceptance rate   = num_accepted_tokens / num_draft_tokens
acceptance length = 1 + num_accepted_tokens / num_drafts        both over the same period

The engine counts speculation, cache hits and preemptions (engine/counters.py); this module counts the rest.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from engine.counters import Counters
from engine.server.sleeping import Sleeping, State
from engine.server.worker import Engine

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServerMetrics:
    """Each server has its own registry, so that two servers in a process don't share metrics."""

    def __init__(self, engine: Engine, *, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of accepted requests.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.time_to_first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From request to first token.", _REQUEST_SECONDS
        )
        self.inter_token_latency = self._histogram(
            "vllm:inter_token_latency_seconds", "Between tokens; tokens of one step share its time.", _TOKEN_SECONDS
        )
        self._latency = self._histogram(
            "vllm:e2e_request_latency_seconds", "From request to last token, per choice.", _REQUEST_SECONDS
        )
        self._ended = Counter(
            "vllm:request_success",
            "Choices that ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._gauge("vllm:num_requests_running", "Choices in the batch.").set_function(lambda: engine.num_running)
        self._gauge("vllm:num_requests_waiting", "Waiting choices.").set_function(lambda: engine.num_waiting)
        usage = self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that sequences use, 0 to 1.")
        usage.set_function(lambda: engine.counters.kv_usage)
        self._registry.register(EngineCounters(lambda: engine.counters, model_name=model_name))

    def request_ended(self, finished_reason: str, *, seconds: float) -> None:
        self._ended.labels(self._model_name, finished_reason).inc()
        self._latency.observe(seconds)

    def watch_sleep(self, sleeping: Sleeping) -> None:
        """Adds a metric for whether the engine sleeps, and one for the duration of the last wake (0: none so far)."""
        asleep = self._gauge("slipstream:engine_asleep", "1 while the engine sleeps or changes its state, else 0.")
        asleep.set_function(lambda: float(sleeping.state is not State.AWAKE))
        wake = self._gauge("slipstream:wake_seconds", "Duration of the last restoration of the engine's memory.")
        wake.set_function(lambda: sleeping.wake_seconds or 0.0)

    def render(self) -> bytes:
        """Returns the metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)
        return histogram.labels(self._model_name)


class EngineCounters(Collector):
    """Reads the engine's counters at every scrape, so that they change while requests run."""

    def __init__(self, counters: Callable[[], Counters], *, model_name: str) -> None:
        self._counters = counters
        self._model_name = model_name

    def collect(self) -> Iterator[CounterMetricFamily]:
        now = self._counters()
        for name, text, value in (
            ("vllm:num_preemptions", "Preemptions of sequences for lack of cache slots.", now.num_preemptions),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", now.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", now.prefix_hits),
            ("vllm:spec_decode_num_drafts", "Verifications, one per sequence and pass.", now.num_drafts),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", now.num_draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", now.num_accepted_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family
        yield self._per_position(now)

    def _per_position(self, now: Counters) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft.",
            labels=["model_name", "position"],
        )
        for position, num_passes in enumerate(list(now.accepted_per_position)):  # the engine's thread appends
            family.add_metric([self._model_name, str(position)], num_passes)
        return family
