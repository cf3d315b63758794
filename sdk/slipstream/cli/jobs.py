"""`slipstream jobs` and `slipstream events`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Jobs: what batches, trainings and evaluations are to the workers.")

add_list(app, "jobs", ("id", "kind", "status", "progress", "attempt", "created_at"))
add_show(app, "jobs")


@app.command()
def cancel(context: typer.Context, job_id: str) -> None:
    """What is finished is kept."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.jobs.cancel(job_id))


@app.command("events")
def job_events(context: typer.Context, job_id: str) -> None:
    """What happened to it, oldest first."""
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.jobs.events(job_id), ("created_at", "type", "data"))


def events(
    context: typer.Context,
    types: Annotated[list[str] | None, typer.Option("--type", help="Such as batch.*; may be given again.")] = None,
    object_id: Annotated[str | None, typer.Option(help="Of this object alone.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="From now on, as they happen, as JSON.")] = False,
) -> None:
    """What happened in the organization, the newest first."""
    own = context_of(context)
    with own.client() as client:
        if follow:
            for event in client.events.stream(types=types or (), object_id=object_id):
                own.output.line(event)
        else:
            found = client.events.list(types=types or (), object_id=object_id)
            own.output.many(found, ("created_at", "type", "object_id", "id"))
