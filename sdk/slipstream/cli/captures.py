"""`slipstream captures`: a deployment's requests, kept for training its next speculator."""

from typing import Annotated

import typer

from slipstream.cli.context import context_of

app = typer.Typer(
    no_args_is_help=True, help="Captures: a deployment's requests, kept for training its next speculator."
)


@app.command("set")
def set_(
    context: typer.Context,
    deployment_id: str,
    hours: Annotated[int, typer.Option(min=1, help="Delete each request after this many hours.")] = 24,
) -> None:
    """Keep requests from now on, without their answers."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.captures.set(deployment_id, hours=hours))


@app.command()
def show(context: typer.Context, deployment_id: str) -> None:
    """Show how many requests are kept."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.captures.retrieve(deployment_id))


@app.command()
def file(context: typer.Context, deployment_id: str) -> None:
    """Make a file of prompts from the kept requests, for `pipelines create`."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.captures.file(deployment_id))


@app.command()
def end(context: typer.Context, deployment_id: str) -> None:
    """Stop keeping requests, and delete those that were kept."""
    cli = context_of(context)
    with cli.client() as client:
        client.captures.end(deployment_id)
        cli.output.one({"deployment_id": deployment_id, "deleted": True})
