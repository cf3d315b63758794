"""Models to ask, and the speculators trained for them."""

from pathlib import Path

from slipstream.drivers import Items, Steps, iteration, procedure
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.types import Model, Speculator


class Models(Resource[D]):
    @iteration
    def list(self) -> Items[Model]:
        """Base models, which batches and pipelines take, and deployments, which chat takes."""
        return self.http.pages(Model, "models")


class Speculators(Resource[D]):
    @procedure
    def retrieve(self, speculator_id: str) -> Steps[Speculator]:
        return self.http.get(Speculator, path_of("speculators", speculator_id))

    @iteration
    def list(self) -> Items[Speculator]:
        return self.http.pages(Speculator, "speculators")

    @procedure
    def plot(self, speculator_id: str, to: Path | str) -> Steps[Path]:
        """Save the picture of the latest evaluation (PNG)."""
        return save(self.http, path_of("speculators", speculator_id, "plot"), Path(to))
