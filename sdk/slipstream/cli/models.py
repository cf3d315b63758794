"""`slipstream models`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Base models: models for which speculators can be trained.")


add_list(app, "base_models", ("id", "name", "status", "model_type", "is_shared"))
add_show(app, "base_models")
add_delete(app, "base_models")


@app.command()
def register(
    context: typer.Context,
    name: str,
    source: Annotated[str, typer.Argument(help="A folder or s3://bucket/prefix that the operators allow.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the model is ready or refused.")] = False,
) -> None:
    """Register a folder of safetensors as a base model. A worker checks the folder."""
    cli = context_of(context)
    with cli.client() as client:
        model = client.base_models.create(name=name, source=source)
        cli.output.one(client.base_models.wait(model.id) if wait else model)
