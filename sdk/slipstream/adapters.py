"""LoRA adapters, which deployments can serve in addition to the model itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.records import Record
from slipstream.types import File

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Record):
    id: str
    name: str  # a request selects the adapter by setting `model` to `deployment:name`, or to a name like `ft:...`
    model: str
    rank: int
    target_modules: Sequence[str]
    bytes: int
    created_at: int


class Adapters(Resource[D]):
    @procedure
    def create(self, *, name: str, model: str, config_file: str, weights_file: str) -> Steps[Adapter]:
        """Create an adapter from two uploaded files. The service checks and copies them."""
        body = {"name": name, "model": model, "config_file": config_file, "weights_file": weights_file}
        return self.http.post(Adapter, "adapters", body)

    @procedure
    def upload(self, folder: Path | str, *, name: str, model: str) -> Steps[Adapter]:
        """Upload a folder written by peft, create an adapter from it, and delete the uploaded files."""
        ids = []
        for filename in (CONFIG, WEIGHTS):
            with (Path(folder) / filename).open("rb") as source:
                file = yield from self.http.upload(
                    File, "files", {"purpose": "user_data"}, {"file": (filename, source)}
                )
            ids.append(file.id)
        body = {"name": name, "model": model, "config_file": ids[0], "weights_file": ids[1]}
        adapter: Adapter = yield from self.http.post(Adapter, "adapters", body)
        for identity in ids:
            yield from self.http.delete(path_of("files", identity))
        return adapter

    @procedure
    def retrieve(self, adapter_id: str) -> Steps[Adapter]:
        return self.http.get(Adapter, path_of("adapters", adapter_id))

    @procedure
    def download(self, adapter_id: str, folder: Path | str) -> Steps[Path]:
        """Write the two files into `folder`, which peft and other engines can load. Returns the folder."""
        for name in (CONFIG, WEIGHTS):
            path = f"{path_of('adapters', adapter_id, 'content')}?name={name}"
            yield from save(self.http, path, Path(folder) / name)
        return Path(folder)

    @listing
    def list(self) -> Items[Page[Adapter]]:
        return self.http.pages(Adapter, "adapters")

    @procedure
    def delete(self, adapter_id: str) -> Steps[None]:
        """Delete an adapter. Raises: ConflictError: a deployment serves it."""
        return self.http.delete(path_of("adapters", adapter_id))
