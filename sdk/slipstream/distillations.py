"""Distillations: a model's answers to many prompts, for speculators to learn from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Steps, iteration, procedure
from slipstream.http import D, Resource, path_of
from slipstream.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    id: str
    model: str
    status: str  # as a batch's
    prompts_file: str
    batch_id: str
    request_counts: Mapping[str, int]
    is_trainable: bool  # there are answers: pipelines may name it
    output_file_id: str | None = None
    error_file_id: str | None = None
    paused: Mapping[str, Any] | None = None  # code, message, cap_id: a spend cap is reached
    cost: Mapping[str, Any]
    quote_id: str | None = None
    created_at: int

    @property
    def is_final(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")


class Distillations(Resource[D]):
    @procedure
    def create(
        self,
        *,
        model: str,
        prompts_file: str,
        quote_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Steps[Distillation]:
        """`quote_id`: whose cap pauses it. Pipelines take it as `distillation_id`, as often as you like."""
        body = {"model": model, "prompts_file": prompts_file, "quote_id": quote_id, "metadata": metadata}
        return self.http.post(Distillation, "distillations", body)

    @procedure
    def retrieve(self, distillation_id: str) -> Steps[Distillation]:
        return self.http.get(Distillation, path_of("distillations", distillation_id))

    @iteration
    def list(self) -> Items[Distillation]:
        return self.http.pages(Distillation, "distillations")

    @procedure
    def cancel(self, distillation_id: str) -> Steps[Distillation]:
        """What is answered by then is kept."""
        return self.http.post(Distillation, path_of("distillations", distillation_id, "cancel"))

    @procedure
    def wait(
        self,
        distillation_id: str,
        *,
        on_progress: Callable[[Distillation], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Distillation]:
        """The distillation once it has ended, however it did. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Distillation, path_of("distillations", distillation_id)),
            lambda distillation: distillation.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
