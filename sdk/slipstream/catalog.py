"""Models, and the speculators that were trained for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.records import Record
from slipstream.types import File, Model, Speculator
from slipstream.waiting import wait_for


class Models(Resource[D]):
    @listing
    def list(self) -> Items[Page[Model]]:
        """Yield base models (for batches and pipelines) and deployments (for chat requests)."""
        return self.http.pages(Model, "models")

    @procedure
    def retrieve(self, name: str) -> Steps[Model]:
        return self.http.get(Model, path_of("models", name))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel(Record):
    id: str
    name: str
    status: str  # checking, ready, refused
    error: Mapping[str, Any] | None = None  # why the model was refused; keys: code, message
    source: str | None = None
    model_type: str | None = None
    # hash of the weights; a speculator works only with the revision for which it was trained
    revision: str | None = None
    perplexity: float | None = None  # per token, on the fixed text of the check; None: not measured
    is_shared: bool
    created_at: int


class BaseModels(Resource[D]):
    @procedure
    def create(self, *, name: str, source: str) -> Steps[BaseModel]:
        """Register a model; a worker then checks its files.

        Args: source: a folder on the service's machines or `s3://bucket/prefix`, if the operators allow it.
        """
        return self.http.post(BaseModel, "base_models", {"name": name, "source": source})

    @procedure
    def retrieve(self, model_id: str) -> Steps[BaseModel]:
        return self.http.get(BaseModel, path_of("base_models", model_id))

    @listing
    def list(self) -> Items[Page[BaseModel]]:
        return self.http.pages(BaseModel, "base_models")

    @procedure
    def delete(self, model_id: str) -> Steps[None]:
        return self.http.delete(path_of("base_models", model_id))

    @procedure
    def wait(
        self,
        model_id: str,
        *,
        on_progress: Callable[[BaseModel], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[BaseModel]:
        """Return the model when it is ready or refused. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(BaseModel, path_of("base_models", model_id)),
            lambda model: model.status != "checking",
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSpeculator(Record):
    """A speculator that every organization can use: pass its id wherever a method takes a speculator's id."""

    id: str
    name: str
    version: int
    kind: str
    description: str
    model: str
    target_revision: str
    created_at: int


class BaseSpeculators(Resource[D]):
    @listing
    def list(self) -> Items[Page[BaseSpeculator]]:
        return self.http.pages(BaseSpeculator, "base_speculators")


class Speculators(Resource[D]):
    @procedure
    def retrieve(self, speculator_id: str) -> Steps[Speculator]:
        return self.http.get(Speculator, path_of("speculators", speculator_id))

    @listing
    def list(self) -> Items[Page[Speculator]]:
        return self.http.pages(Speculator, "speculators")

    @procedure
    def export(self, speculator_id: str, *, format: str) -> Steps[File]:  # noqa: A002  # the API's name
        """Export a speculator to a zip archive. Args: format: speculators, specforge, medusa, hugging_face or lorax."""
        return self.http.post(File, path_of("speculators", speculator_id, "export"), {"format": format})

    @procedure
    def archive(self, speculator_id: str, *, evaluation_id: str | None = None) -> Steps[File]:
        """Make a zip archive with the speculator's weights in each format, its recipe, report and certificate.

        `slipstream.archives.verify_archive` checks the archive.

        Args: evaluation_id: whose report and certificate are included; default: the latest evaluation.
        """
        return self.http.post(File, path_of("speculators", speculator_id, "archive"), {"evaluation_id": evaluation_id})

    @procedure
    def import_(self, *, file_id: str, format: str, model: str, name: str) -> Steps[Speculator]:  # noqa: A002
        """Create a speculator from an uploaded zip archive of a folder in another engine's format.

        Args: model: the model that the speculator was trained for.
        """
        body = {"file_id": file_id, "format": format, "model": model, "name": name}
        return self.http.post(Speculator, "speculators", body)

    @procedure
    def delete(self, speculator_id: str) -> Steps[None]:
        """Delete a speculator. Raises: ConflictError: a deployment, a pipeline or a job uses it."""
        return self.http.delete(path_of("speculators", speculator_id))

    @procedure
    def plot(self, speculator_id: str, to: Path | str) -> Steps[Path]:
        """Save the plot of the latest evaluation (PNG)."""
        return save(self.http, path_of("speculators", speculator_id, "plot"), Path(to))
