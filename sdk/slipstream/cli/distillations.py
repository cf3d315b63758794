"""`slipstream distillations`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show, file_id_of
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Distillations: your model's answers, as training data for speculators.")


add_list(app, "distillations", ("id", "model", "status", "is_trainable", "created_at"))
add_show(app, "distillations")


@app.command()
def create(
    context: typer.Context,
    model: str,
    prompts: Annotated[str, typer.Argument(help="A local file, or the id of an uploaded file.")],
    quote_id: Annotated[str | None, typer.Option(help="A quote whose cap limits the cost.")] = None,
    on_truncation: Annotated[
        str | None,
        typer.Option(help="What to do with answers that reach the limits of their rows: keep, drop or continue."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the distillation has ended.")] = False,
) -> None:
    """Let the model answer the prompts, and keep the answers as training data."""
    cli = context_of(context)
    with cli.client() as client:
        prompts_file = file_id_of(cli, client, prompts)
        distillation = client.distillations.create(
            model=model, prompts_file=prompts_file, quote_id=quote_id, on_truncation=on_truncation
        )
        cli.output.one(client.distillations.wait(distillation.id) if wait else distillation)


@app.command()
def cancel(context: typer.Context, distillation_id: str) -> None:
    """Cancel a distillation; finished answers are kept."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.distillations.cancel(distillation_id))
