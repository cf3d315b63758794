"""`slipstream speculators` and `slipstream deployments`."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slipstream import Client
from slipstream.cli.context import context_of
from slipstream.types import File
from slipstream.uploads import PART_BYTES

speculators = typer.Typer(no_args_is_help=True, help="Speculators: what was trained.")
deployments = typer.Typer(no_args_is_help=True, help="Deployments: endpoints, called by their name.")


@speculators.command("list")
def list_speculators(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.speculators.list(), ("id", "name", "version", "kind", "model", "status"))


@speculators.command("show")
def show_speculator(context: typer.Context, speculator_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.speculators.retrieve(speculator_id))


@speculators.command()
def export(
    context: typer.Context,
    speculator_id: str,
    to: Path,
    form: Annotated[str, typer.Option("--format", help="speculators, specforge, medusa, hugging_face or lorax.")],
) -> None:
    """Write a speculator for another engine into a zip archive."""
    own = context_of(context)
    with own.client() as client:
        file = client.speculators.export(speculator_id, format=form)
        own.output.one({"file_id": file.id, "path": str(client.files.download(file.id, to))})


@speculators.command("import")
def import_speculator(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(exists=True, help="A folder, or a zip archive of one.")],
    form: Annotated[str, typer.Option("--format", help="speculators, specforge, medusa, hugging_face or lorax.")],
    model: Annotated[str, typer.Option(help="What it was trained for.")],
    name: Annotated[str, typer.Option(help="A name that is there already gets a next version.")],
) -> None:
    """Make a speculator of another engine's folder."""
    own = context_of(context)
    with own.client() as client, tempfile.TemporaryDirectory() as folder:
        archive = source
        if source.is_dir():
            archive = Path(shutil.make_archive(str(Path(folder) / source.name), "zip", source))
        file = _send(client, archive)
        own.output.one(client.speculators.import_(file_id=file.id, format=form, model=model, name=name))


def _send(client: Client, archive: Path) -> File:
    num_bytes = archive.stat().st_size
    if num_bytes <= PART_BYTES:
        return client.files.upload(archive, purpose="user_data")
    upload = client.uploads.create(
        filename=archive.name, num_bytes=num_bytes, purpose="user_data", mime_type="application/zip"
    )
    return client.uploads.send(upload.id, archive)


@speculators.command("delete")
def delete_speculator(context: typer.Context, speculator_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        client.speculators.delete(speculator_id)
        own.output.one({"id": speculator_id, "deleted": True})


@speculators.command()
def plot(context: typer.Context, speculator_id: str, to: Path) -> None:
    """Save the picture of the latest evaluation (PNG)."""
    own = context_of(context)
    with own.client() as client:
        own.output.one({"path": str(client.speculators.plot(speculator_id, to))})


@deployments.command()
def create(context: typer.Context, name: str, model: str, speculator_id: str | None = None) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.deployments.create(name=name, model=model, speculator_id=speculator_id))


@deployments.command("list")
def list_deployments(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.deployments.list(), ("id", "name", "model", "speculator_id", "state"))


@deployments.command("show")
def show_deployment(context: typer.Context, deployment_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.deployments.retrieve(deployment_id))


@deployments.command()
def start(context: typer.Context, deployment_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.deployments.start(deployment_id))


@deployments.command()
def stop(context: typer.Context, deployment_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.deployments.stop(deployment_id))


@deployments.command()
def delete(context: typer.Context, deployment_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        client.deployments.delete(deployment_id)
        own.output.one({"id": deployment_id, "deleted": True})
