"""`slipstream batches`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show, file_id_of
from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.progress import Watch

app = typer.Typer(no_args_is_help=True, help="Batches: files of prompts that a model answers.")

add_list(app, "batches", ("id", "status", "num_rows", "num_completed", "num_failed", "created_at"))
add_show(app, "batches")


@app.command()
def create(
    context: typer.Context,
    prompts: Annotated[str, typer.Argument(help="A local file, or the id of an uploaded file.")],
    endpoint: str = "/v1/chat/completions",
    model: Annotated[str | None, typer.Option(help="The model for rows that do not name one.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="Priority among the jobs of your organization: low, normal or high.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the batch has ended.")] = False,
) -> None:
    """Create a batch that answers every row of a file."""
    cli = context_of(context)
    with cli.client() as client:
        file_id = file_id_of(cli, client, prompts)
        batch = client.batches.create(input_file_id=file_id, endpoint=endpoint, model=model, priority=priority)
        if wait:
            _wait(cli, client, batch.id)
        else:
            cli.output.one(batch)


@app.command()
def wait(context: typer.Context, batch_id: str) -> None:
    """Wait until the batch has ended; the exit code is 4 unless the batch is completed and has answers."""
    cli = context_of(context)
    with cli.client() as client:
        _wait(cli, client, batch_id)


@app.command()
def cancel(context: typer.Context, batch_id: str) -> None:
    """Cancel a batch; finished answers are kept."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.batches.cancel(batch_id))


@app.command()
def resume(context: typer.Context, batch_id: str) -> None:
    """Continue a failed, expired or cancelled batch in a new one, which copies the finished rows free of charge."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.batches.resume(batch_id))


@app.command()
def repair(
    context: typer.Context,
    batch_id: str,
    rows: Annotated[list[str], typer.Option(help="Rows to answer again: unfinished, failed or cut. Repeatable.")],
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens of a new answer; required for cut answers.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the new batch has ended.")] = False,
) -> None:
    """Answer some rows of an ended batch again in a new one, which copies all other results free of charge."""
    cli = context_of(context)
    with cli.client() as client:
        batch = client.batches.repair(batch_id, rows=rows, max_tokens=max_tokens)
        if wait:
            _wait(cli, client, batch.id)
        else:
            cli.output.one(batch)


@app.command()
def results(
    context: typer.Context,
    batch_id: str,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print each row as soon as it is ready, until the batch has ended.")
    ] = False,
) -> None:
    """Print output rows in input order, one JSON object per line."""
    cli = context_of(context)
    with cli.client() as client:
        for row in client.batches.results(batch_id, follow=follow):
            cli.output.json(row)


def _wait(cli: Context, client: Client, batch_id: str) -> None:
    with Watch(cli.output.errors, disable=cli.output.is_json) as watch:
        batch = client.batches.wait(batch_id, on_progress=watch.show)
    cli.output.one(batch)
