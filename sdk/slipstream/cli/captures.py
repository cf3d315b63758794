"""`slipstream captures`: a deployment's requests, kept to train its next speculator on."""

from typing import Annotated

import typer

from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Captures: a deployment's requests, for its next speculator.")


@app.command("set")
def set_(
    context: typer.Context,
    deployment_id: str,
    hours: Annotated[int, typer.Option(min=1, help="A request is deleted when it is so old.")] = 24,
) -> None:
    """Keep requests from now on, without their answers."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.captures.set(deployment_id, hours=hours))


@app.command()
def show(context: typer.Context, deployment_id: str) -> None:
    """How many are kept."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.captures.retrieve(deployment_id))


@app.command()
def file(context: typer.Context, deployment_id: str) -> None:
    """Make a file of prompts of what is kept, for `pipelines create`."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.captures.file(deployment_id))


@app.command()
def end(context: typer.Context, deployment_id: str) -> None:
    """Keep nothing any more, and delete what was kept."""
    own = context_of(context)
    with own.client() as client:
        client.captures.end(deployment_id)
        own.output.one({"deployment_id": deployment_id, "deleted": True})
