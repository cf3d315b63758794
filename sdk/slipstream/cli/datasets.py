"""`slipstream datasets`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show, file_id_of
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Datasets: what is in a file, and what is wrong with it.")

INVALID = 4
MOST_SHOWN = 10

add_list(app, "datasets", ("id", "file_id", "status", "num_rows", "num_tokens", "created_at"))
add_show(app, "datasets")
add_delete(app, "datasets")


@app.command()
def check(
    context: typer.Context,
    prompts: Annotated[str, typer.Argument(help="A file here, or the id of one that was uploaded.")],
    model: Annotated[str | None, typer.Option(help="Whose tokens to count.")] = None,
) -> None:
    """Read every line, at no cost; exit code 4 if one is bad."""
    own = context_of(context)
    with own.client() as client:
        dataset = client.datasets.create(file_id=file_id_of(own, client, prompts), model=model)
        own.output.one(dataset)
        if dataset.status != "valid":
            for bad in dataset.errors["data"][:MOST_SHOWN]:
                own.output.advice(f"line {bad['line']}: {bad['message']} [{bad['code']}]")
            own.output.advice(f"`slipstream datasets errors {dataset.id}` has each bad line.")
            raise typer.Exit(INVALID)


@app.command()
def errors(context: typer.Context, dataset_id: str) -> None:
    """The bad lines, the first thousand."""
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.datasets.errors(dataset_id), ("line", "column", "code", "message"))


@app.command()
def preview(
    context: typer.Context,
    dataset_id: str,
    limit: Annotated[int, typer.Option(min=1, max=20)] = 5,
) -> None:
    """The first rows as the model will read them, one JSON object a line."""
    own = context_of(context)
    with own.client() as client:
        for row in client.datasets.preview(dataset_id, limit=limit):
            own.output.json(row)
