"""Models to ask, and the speculators trained for them."""

from collections.abc import Iterator
from pathlib import Path

from slipstream.files import save
from slipstream.http import Http, path_of
from slipstream.types import Model, Speculator, record


class Models:
    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> Iterator[Model]:
        """Base models, which batches and pipelines take, and deployments, which chat takes."""
        return (record(Model, values) for values in self._http.pages("models"))


class Speculators:
    def __init__(self, http: Http) -> None:
        self._http = http

    def retrieve(self, speculator_id: str) -> Speculator:
        return record(Speculator, self._http.get(path_of("speculators", speculator_id)))

    def list(self) -> Iterator[Speculator]:
        return (record(Speculator, values) for values in self._http.pages("speculators"))

    def plot(self, speculator_id: str, to: Path | str) -> Path:
        """Save the picture of the latest evaluation (PNG)."""
        return save(self._http, path_of("speculators", speculator_id, "plot"), Path(to))
