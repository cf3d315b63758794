"""`slipstream speculators` and `slipstream deployments`."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show, send
from slipstream.cli.context import context_of

speculators = typer.Typer(no_args_is_help=True, help="Speculators: trained or imported drafters.")
deployments = typer.Typer(no_args_is_help=True, help="Deployments: dedicated endpoints, addressed by name.")


add_list(speculators, "speculators", ("id", "name", "version", "kind", "model", "status", "created_at"))
add_show(speculators, "speculators")
add_delete(speculators, "speculators")


@speculators.command()
def export(
    context: typer.Context,
    speculator_id: str,
    to: Path,
    form: Annotated[str, typer.Option("--format", help="speculators, specforge, medusa, hugging_face or lorax.")],
) -> None:
    """Export a speculator for another engine, as a zip archive."""
    cli = context_of(context)
    with cli.client() as client:
        file = client.speculators.export(speculator_id, format=form)
        cli.output.one({"file_id": file.id, "path": str(client.files.download(file.id, to))})


@speculators.command()
def archive(
    context: typer.Context,
    speculator_id: str,
    to: Path,
    evaluation: Annotated[
        str | None, typer.Option(help="Whose report and certificate are included; default: the latest evaluation.")
    ] = None,
) -> None:
    """Save an archive with the weights, the report, the certificate and the commands that serve the speculator.

    `slipstream verify` checks the archive without a network.
    """
    cli = context_of(context)
    with cli.client() as client:
        file = client.speculators.archive(speculator_id, evaluation_id=evaluation)
        cli.output.one({"file_id": file.id, "path": str(client.files.download(file.id, to))})


@speculators.command("import")
def import_speculator(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(exists=True, help="A folder, or a zip archive of a folder.")],
    form: Annotated[str, typer.Option("--format", help="speculators, specforge, medusa, hugging_face or lorax.")],
    model: Annotated[str, typer.Option(help="The model for which the speculator was trained.")],
    name: Annotated[str, typer.Option(help="Name of the speculator. If it exists, the import is its next version.")],
) -> None:
    """Create a speculator from another engine's folder."""
    cli = context_of(context)
    with cli.client() as client, tempfile.TemporaryDirectory() as folder:
        archive = source
        if source.is_dir():
            archive = Path(shutil.make_archive(str(Path(folder) / source.name), "zip", source))
        file = send(cli, client, archive, purpose="user_data", mime_type="application/zip")
        cli.output.one(client.speculators.import_(file_id=file.id, format=form, model=model, name=name))


@speculators.command()
def plot(context: typer.Context, speculator_id: str, to: Path) -> None:
    """Save the plot of the latest evaluation (PNG)."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one({"path": str(client.speculators.plot(speculator_id, to))})


add_list(deployments, "deployments", ("id", "name", "model", "speculator_id", "state", "created_at"))
add_show(deployments, "deployments")
add_delete(deployments, "deployments")


@deployments.command()
def create(context: typer.Context, name: str, model: str, speculator_id: str | None = None) -> None:
    """Serve a model, with or without a speculator."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.deployments.create(name=name, model=model, speculator_id=speculator_id))


@deployments.command()
def start(context: typer.Context, deployment_id: str) -> None:
    """Start a stopped or failed deployment."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.deployments.start(deployment_id))


@deployments.command()
def stop(context: typer.Context, deployment_id: str) -> None:
    """Stop a deployment; current requests are finished, new ones are refused."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.deployments.stop(deployment_id))
