"""Prometheus metrics under vLLM's names, so that dashboards and autoscalers made for it work here.

acceptance rate   = num_accepted_tokens / num_draft_tokens
acceptance length = 1 + num_accepted_tokens / num_drafts        both over the same span of time

The speculation counters grow when a request ends.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.request import SpeculationStats
from engine.server.worker import Engine

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServerMetrics:
    """One registry per server, so that two in a process don't share figures."""

    def __init__(self, engine: Engine, *, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens taken in.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.time_to_first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From request to first token.", _REQUEST_SECONDS
        )
        self.inter_token_latency = self._histogram(
            "vllm:inter_token_latency_seconds", "Between tokens; those of one step share its time.", _TOKEN_SECONDS
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
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Verify passes.")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted_tokens = self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._accepted_per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by place in the draft.",
            ["model_name", "position"],
            registry=self._registry,
        )
        self._gauge("vllm:num_requests_running", "Choices in the batch.").set_function(lambda: engine.num_running)
        self._gauge("vllm:num_requests_waiting", "Choices that wait.").set_function(lambda: engine.num_waiting)

    def request_ended(self, finished_reason: str, *, seconds: float) -> None:
        self._ended.labels(self._model_name, finished_reason).inc()
        self._latency.observe(seconds)

    def count_speculation(self, stats: SpeculationStats) -> None:
        self._drafts.inc(stats.num_spec_steps)
        self._draft_tokens.inc(stats.num_draft_tokens)
        self._accepted_tokens.inc(stats.num_accepted_draft_tokens)
        histogram = stats.acceptance_histogram
        for position in range(len(histogram) - 1):
            num_passes = sum(histogram[position + 1 :])  # those that accepted more than `position` tokens
            self._accepted_per_position.labels(self._model_name, str(position)).inc(num_passes)

    def render(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)
        return histogram.labels(self._model_name)
