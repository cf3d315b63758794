"""`slipstream models`."""

from typing import Annotated

import typer

from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Base models: what is answered with, and made faster.")


@app.command()
def register(
    context: typer.Context,
    name: str,
    source: Annotated[str, typer.Argument(help="A folder or s3://bucket/prefix that the operators allow.")],
    wait: Annotated[bool, typer.Option("--wait", help="Until it is ready or refused.")] = False,
) -> None:
    own = context_of(context)
    with own.client() as client:
        made = client.base_models.create(name=name, source=source)
        own.output.one(client.base_models.wait(made.id) if wait else made)


@app.command("list")
def list_(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.base_models.list(), ("id", "name", "status", "model_type", "is_shared"))


@app.command()
def show(context: typer.Context, model_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.base_models.retrieve(model_id))


@app.command()
def delete(context: typer.Context, model_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        client.base_models.delete(model_id)
        own.output.one({"id": model_id, "deleted": True})
