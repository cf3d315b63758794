"""`slipstream distillations`."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Distillations: your model's answers, for speculators to learn from.")


@app.command()
def create(
    context: typer.Context,
    model: str,
    prompts: Annotated[str, typer.Argument(help="A file here, or the id of one that was uploaded.")],
    quote_id: Annotated[str | None, typer.Option(help="Whose cap pauses it.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
) -> None:
    own = context_of(context)
    with own.client() as client:
        prompts_file = client.files.upload(prompts).id if Path(prompts).is_file() else prompts
        made = client.distillations.create(model=model, prompts_file=prompts_file, quote_id=quote_id)
        own.output.one(client.distillations.wait(made.id) if wait else made)


@app.command("list")
def list_(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.distillations.list(), ("id", "model", "status", "is_trainable", "created_at"))


@app.command()
def show(context: typer.Context, distillation_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.distillations.retrieve(distillation_id))


@app.command()
def cancel(context: typer.Context, distillation_id: str) -> None:
    """What is answered by then is kept."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.distillations.cancel(distillation_id))
