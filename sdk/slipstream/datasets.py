"""Datasets: a file checked before anything is spent; quotes: what a batch of it will cost."""

from collections.abc import Callable
from typing import Any

from slipstream.drivers import Items, Steps, iteration, procedure
from slipstream.http import D, Resource, path_of
from slipstream.types import Dataset, Quote
from slipstream.waiting import wait_for

Rows = list[dict[str, Any]]


class Datasets(Resource[D]):
    @procedure
    def create(self, *, file_id: str, model: str | None = None) -> Steps[Dataset]:
        """Every line is read; `status` and `errors` say what was found. With a model, tokens are counted."""
        return self.http.post(Dataset, "datasets", {"file_id": file_id, "model": model})

    @procedure
    def retrieve(self, dataset_id: str) -> Steps[Dataset]:
        return self.http.get(Dataset, path_of("datasets", dataset_id))

    @iteration
    def list(self) -> Items[Dataset]:
        return self.http.pages(Dataset, "datasets")

    @procedure
    def errors(self, dataset_id: str) -> Steps[Rows]:
        """Up to 1,000 bad lines, each with `line`, `column`, `code` and `message`."""
        return self._data(path_of("datasets", dataset_id, "errors"))

    @procedure
    def preview(self, dataset_id: str, *, limit: int | None = None) -> Steps[Rows]:
        """The first rows as the model will see them."""
        return self._data(path_of("datasets", dataset_id, "preview"), limit)

    @procedure
    def delete(self, dataset_id: str) -> Steps[None]:
        return self.http.delete(path_of("datasets", dataset_id))

    def _data(self, path: str, limit: int | None = None) -> Steps[Rows]:
        page = yield from self.http.get(dict, path, {"limit": limit})
        data: Rows = page["data"]
        return data


class Quotes(Resource[D]):
    @procedure
    def create(self, *, dataset_id: str, basis: str = "pilot") -> Steps[Quote]:
        return self.http.post(Quote, "quotes", {"dataset_id": dataset_id, "basis": basis})

    @procedure
    def retrieve(self, quote_id: str) -> Steps[Quote]:
        return self.http.get(Quote, path_of("quotes", quote_id))

    @iteration
    def list(self) -> Items[Quote]:
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
        """The quote once it is ready or failed. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Quote, path_of("quotes", quote_id)),
            lambda quote: quote.status != "measuring",
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
