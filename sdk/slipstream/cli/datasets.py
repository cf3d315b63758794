"""`slipstream datasets`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show, file_id_of
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Datasets: files of prompts, checked for errors.")

INVALID = 4
MAX_PRINTED_ERRORS = 10

add_list(app, "datasets", ("id", "name", "version", "file_id", "status", "num_rows", "num_tokens", "created_at"))
add_show(app, "datasets")
add_delete(app, "datasets")


@app.command()
def check(
    context: typer.Context,
    prompts: Annotated[str, typer.Argument(help="A local file, or the id of an uploaded file.")],
    model: Annotated[str | None, typer.Option(help="The model whose tokenizer counts the tokens.")] = None,
    name: Annotated[str | None, typer.Option(help="The dataset becomes the next version of this name.")] = None,
    on_sensitive: Annotated[
        str | None, typer.Option(help="What to do if the file has secrets or personal data: warn, redact or refuse.")
    ] = None,
) -> None:
    """Check every line of a file, free of charge; the exit code is 4 if a line is bad."""
    cli = context_of(context)
    with cli.client() as client:
        dataset = client.datasets.create(
            file_id=file_id_of(cli, client, prompts), model=model, name=name, on_sensitive=on_sensitive
        )
        cli.output.one(dataset)
        if dataset.status != "valid":
            for bad in dataset.errors["data"][:MAX_PRINTED_ERRORS]:
                cli.output.advice(f"line {bad['line']}: {bad['message']} [{bad['code']}]")
            cli.output.advice(f"`slipstream datasets errors {dataset.id}` lists up to 1,000 bad lines.")
            raise typer.Exit(INVALID)


@app.command()
def errors(context: typer.Context, dataset_id: str) -> None:
    """List the bad lines, up to 1,000."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.many(client.datasets.errors(dataset_id), ("line", "column", "code", "message"))


@app.command()
def preview(
    context: typer.Context,
    dataset_id: str,
    limit: Annotated[int, typer.Option(min=1, max=20, help="Number of rows.")] = 5,
) -> None:
    """Print the first rows as the model will read them, one JSON object per line."""
    cli = context_of(context)
    with cli.client() as client:
        for row in client.datasets.preview(dataset_id, limit=limit):
            cli.output.json(row)
