"""Datasets are validated files of prompts; quotes estimate the cost of a batch of a dataset's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record, record
from slipstream.waiting import wait_for

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Record):
    id: str
    name: str | None = None
    version: int | None = None
    file_id: str
    model: str | None = None
    status: str  # valid, invalid
    format: str | None = None  # batch, chat, prompt
    bytes: int
    num_rows: int
    num_answers: int
    num_tokens: int | None = None
    num_tokens_exact: bool | None = None
    errors: Mapping[str, Any]  # keys: data, total_count, by_code
    duplicates: Mapping[str, Any] | None = None  # equal and similar prompts; keys: exact, near
    sensitive: Mapping[str, Any] | None = None  # secrets and personal data; keys: num_found, num_rows, kinds
    origin: Mapping[str, Any] | None = None  # the datasets from which it was made, and the request
    created_at: int


class Datasets(Resource[D]):
    @procedure
    def create(
        self, *, file_id: str, model: str | None = None, name: str | None = None, on_sensitive: str | None = None
    ) -> Steps[Dataset]:
        """Validate every line of a file, free of charge. The result is in the dataset's `status` and `errors`.

        Args:
            model: the model whose tokenizer counts the tokens.
            name: the dataset becomes the next version of this name.
            on_sensitive: what happens if the file has secrets or personal data: `warn`, `redact`, `refuse`. None: the
                file is not scanned.
        """
        body = {"file_id": file_id, "model": model, "name": name, "on_sensitive": on_sensitive}
        return self.http.post(Dataset, "datasets", body)

    @procedure
    def retrieve(self, dataset_id: str) -> Steps[Dataset]:
        """Args: dataset_id: an id, `name@version` or `name@latest`, as in all methods."""
        return self.http.get(Dataset, path_of("datasets", dataset_id))

    @listing
    def list(self, *, name: str | None = None) -> Items[Page[Dataset]]:
        return self.http.pages(Dataset, "datasets", {"name": name})

    @procedure
    def errors(self, dataset_id: str) -> Steps[Rows]:
        """Return up to 1,000 bad lines, each with `line`, `column`, `code` and `message`."""
        return self._data(path_of("datasets", dataset_id, "errors"))

    @procedure
    def preview(self, dataset_id: str, *, limit: int | None = None) -> Steps[Rows]:
        """Return the first rows as the tokens that the model will get."""
        return self._data(path_of("datasets", dataset_id, "preview"), limit)

    @procedure
    def split(
        self, dataset_id: str, *, shares: Mapping[str, float] | None = None, seed: int = 0, label: str | None = None
    ) -> Steps[tuple[Dataset, ...]]:
        """Copy each row to the file and dataset of its split.

        Args:
            shares: {"train": 0.9, "held_out": 0.1}. A prompt is in the same split of each version of a dataset.
            label: replaces `shares`; a member of each row, whose value is the name of the row's split.
        """
        body = {"shares": shares, "seed": seed, "label": label}
        made = yield from self.http.post(dict, path_of("datasets", dataset_id, "splits"), body)
        return tuple(record(Dataset, values) for values in made["data"])

    @procedure
    def filter(self, /, dataset_id: str, *, name: str | None = None, **conditions: Any) -> Steps[Dataset]:
        """Copy the rows that pass all conditions to a new dataset; its `origin` has the conditions.

        Args:
            name: the new dataset becomes the next version of this name; None: the name of the filtered dataset.
            conditions: `labels`, `has_answer`, `contains`, `matches`, `excludes`, `min_characters`, `max_characters`,
                `min_tokens`, `max_tokens`, `drop_duplicates`, `share`, `rows`, `seed`. `matches` and `excludes` are
                patterns of RE2.
        """
        return self.http.post(Dataset, path_of("datasets", dataset_id, "filter"), {"name": name, **conditions})

    @procedure
    def mix(
        self, sources: Sequence[Mapping[str, Any]], *, rows: int | None = None, seed: int = 0, name: str | None = None
    ) -> Steps[Dataset]:
        """Copy rows of several datasets to a new one; its `origin["mix"]` has all that is needed to make it again.

        Args:
            sources: [{"dataset_id": "chats@latest", "weight": 3}, {"dataset_id": "code@2", "weight": 1}].
            rows: number of rows of the new dataset; None: as many as the sources have in this proportion.
        """
        body = {"sources": sources, "rows": rows, "seed": seed, "name": name}
        return self.http.post(Dataset, "datasets/mix", body)

    @procedure
    def delete(self, dataset_id: str) -> Steps[None]:
        return self.http.delete(path_of("datasets", dataset_id))

    def _data(self, path: str, limit: int | None = None) -> Steps[Rows]:
        page = yield from self.http.get(dict, path, {"limit": limit})
        data: Rows = page["data"]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote(Record):
    """The estimated cost, with bounds, of a batch of a dataset's rows or of a pipeline with these rows."""

    id: str
    dataset_id: str
    status: str  # measuring, ready, failed
    basis: str  # pilot, history
    num_rows: int
    input_tokens: int
    input_tokens_exact: bool
    output_tokens: int | None = None
    output_tokens_low: int | None = None
    output_tokens_high: int | None = None
    cost: Mapping[str, Any] | None = None  # keys: value, currency
    cost_low: Mapping[str, Any] | None = None
    cost_high: Mapping[str, Any] | None = None
    cap: Mapping[str, Any] | None = None
    pipeline: Mapping[str, Any] | None = None
    # For a pipeline: one line for each stage and for the endpoint, with costs, device time and the basis of both.
    stages: Sequence[Mapping[str, Any]] | None = None
    # cost so far of the batches, distillations and pipelines that use this quote
    spent: Mapping[str, Any] | None = None
    created_at: int


class Quotes(Resource[D]):
    @procedure
    def create(
        self,
        *,
        dataset_id: str,
        basis: str = "pilot",
        cap: float | None = None,
        pipeline: Mapping[str, Any] | None = None,
    ) -> Steps[Quote]:
        """Estimate the cost of a batch or, with `pipeline`, of a pipeline and the first month of its endpoint.

        Args:
            basis: how the number of output tokens is estimated. `pilot` answers some of the rows, `history` uses
                earlier batches.
            cap: US dollars; batches and other work created with the quote are paused when they have cost this much.
            pipeline: {"training": {"kind": "medusa", "max_seconds": 600}, "evaluation": {"concurrencies": [1, 16]},
                "endpoint": {"replicas": 2, "hours": 730}}; `endpoint` may be None. Needs the basis `pilot`.
        """
        body = {"dataset_id": dataset_id, "basis": basis, "cap": cap, "pipeline": pipeline}
        return self.http.post(Quote, "quotes", body)

    @procedure
    def update(self, quote_id: str, *, cap: float | None) -> Steps[Quote]:
        """Change or remove the cap; paused work continues where it stopped."""
        return self.http.patch(Quote, path_of("quotes", quote_id), {"cap": cap})

    @procedure
    def retrieve(self, quote_id: str) -> Steps[Quote]:
        return self.http.get(Quote, path_of("quotes", quote_id))

    @listing
    def list(self) -> Items[Page[Quote]]:
        return self.http.pages(Quote, "quotes")

    @procedure
    def wait(
        self,
        quote_id: str,
        *,
        on_progress: Callable[[Quote], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Quote]:
        """Return the quote when it is ready or failed. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Quote, path_of("quotes", quote_id)),
            lambda quote: quote.status != "measuring",
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
