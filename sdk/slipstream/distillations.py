"""Distillations: a model's answers to many prompts, as training data for speculators.

`slipstream.drivers` explains the types: to users of a `Client`, `Steps[X]` is an X and `Items[X]` an iterator over X.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.plans import EnginePlan
from slipstream.records import Record
from slipstream.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(Record):
    id: str
    model: str
    status: str  # the same values as for a batch
    prompts_file: str
    duplicates: Mapping[str, Any] | None = None  # equal and similar prompts of the file; keys: exact, near
    batch_id: str
    request_counts: Mapping[str, int]
    on_truncation: str = "keep"  # keep, drop or continue
    max_continued_tokens: int | None = None
    engine: Mapping[str, Any] | None = None  # options of the engine
    hardware: str | None = None  # the requested device; None: any device
    # numbers of truncated answers: in_trace, in_answer, continued, unfinished, dropped; set when the distillation has
    # ended
    truncated: Mapping[str, int] | None = None
    is_trainable: bool  # whether pipelines can use the answers
    output_file_id: str | None = None
    error_file_id: str | None = None
    paused: Mapping[str, Any] | None = None  # set while a reached spend cap pauses it; keys: code, message, cap_id
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
        on_truncation: str | None = None,
        max_continued_tokens: int | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[Distillation]:
        """Create a distillation. Any number of pipelines can use its id as `distillation_id`.

        Args:
            quote_id: a quote whose cap limits the cost of the distillation.
            on_truncation: what happens to answers that reach the limits of their rows: `keep`, `drop` or `continue`.
            max_continued_tokens: limit for the length of a continued answer; the default is the model's context.
            engine: options of the engine; `slipstream.plans` lists them.
            hardware: `device_kind` or `name` of the device, as listed by `hardware.list`; the default is any device.
        """
        body = {
            "model": model,
            "prompts_file": prompts_file,
            "quote_id": quote_id,
            "metadata": metadata,
            "on_truncation": on_truncation,
            "max_continued_tokens": max_continued_tokens,
            "engine": engine,
            "hardware": hardware,
        }
        return self.http.post(Distillation, "distillations", body)

    @procedure
    def plan(
        self,
        *,
        model: str,
        prompts_file: str,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[EnginePlan]:
        """Show how the engine of a distillation with these arguments would use its memory. Nothing is created."""
        body: dict[str, Any] = {"model": model, "prompts_file": prompts_file, "engine": engine, "hardware": hardware}
        body["validate_only"] = True
        return self.http.post(EnginePlan, "distillations", body)

    @procedure
    def retrieve(self, distillation_id: str) -> Steps[Distillation]:
        return self.http.get(Distillation, path_of("distillations", distillation_id))

    @listing
    def list(self) -> Items[Page[Distillation]]:
        return self.http.pages(Distillation, "distillations")

    @procedure
    def cancel(self, distillation_id: str) -> Steps[Distillation]:
        """Cancel a distillation; finished answers are kept."""
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
        """Return the distillation when it has ended, successfully or not. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Distillation, path_of("distillations", distillation_id)),
            lambda distillation: distillation.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
