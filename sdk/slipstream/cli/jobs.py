"""`slipstream jobs` and `slipstream events`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Jobs: the batches, trainings and evaluations that workers run.")

add_list(app, "jobs", ("id", "kind", "status", "progress", "attempt", "created_at"))
add_show(app, "jobs")


@app.command()
def cancel(context: typer.Context, job_id: str) -> None:
    """Cancel a job; finished work is kept."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.jobs.cancel(job_id))


@app.command("events")
def job_events(context: typer.Context, job_id: str) -> None:
    """List the job's events, oldest first."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.many(client.jobs.events(job_id), ("created_at", "type", "data"))


def events(
    context: typer.Context,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Type or pattern such as batch.*; may be repeated.")
    ] = None,
    object_id: Annotated[str | None, typer.Option(help="Only events of this object.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print new events as they happen, in JSON.")] = False,
) -> None:
    """List the organization's events, newest first; with --follow, wait for new events instead."""
    cli = context_of(context)
    with cli.client() as client:
        if follow:
            for event in client.events.stream(types=types or (), object_id=object_id):
                cli.output.line(event)
        else:
            listed = client.events.list(types=types or (), object_id=object_id)
            cli.output.many(listed, ("created_at", "type", "object_id", "id"))
