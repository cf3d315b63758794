"""`slipstream speculators` and `slipstream deployments`."""

from pathlib import Path

import typer

from slipstream.cli.context import context_of

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
