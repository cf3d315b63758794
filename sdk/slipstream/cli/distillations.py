"""`slipstream distillations`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show, file_id_of
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Distillations: your model's answers, for speculators to learn from.")


add_list(app, "distillations", ("id", "model", "status", "is_trainable", "created_at"))
add_show(app, "distillations")


@app.command()
def create(
    context: typer.Context,
    model: str,
    prompts: Annotated[str, typer.Argument(help="A file here, or the id of one that was uploaded.")],
    quote_id: Annotated[str | None, typer.Option(help="Whose cap pauses it.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
) -> None:
    """Have the prompts answered by the model, and keep the token ids."""
    own = context_of(context)
    with own.client() as client:
        prompts_file = file_id_of(own, client, prompts)
        made = client.distillations.create(model=model, prompts_file=prompts_file, quote_id=quote_id)
        own.output.one(client.distillations.wait(made.id) if wait else made)


@app.command()
def cancel(context: typer.Context, distillation_id: str) -> None:
    """What is answered by then is kept."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.distillations.cancel(distillation_id))
