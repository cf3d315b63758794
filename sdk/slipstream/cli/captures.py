"""`slipstream captures`."""

from typing import Annotated

import typer

from slipstream.cli.context import context_of

app = typer.Typer(
    no_args_is_help=True, help="Captures: stored requests to a deployment, to train its next speculator with them."
)


@app.command("set")
def set_(
    context: typer.Context,
    deployment_id: str,
    hours: Annotated[int, typer.Option(min=1, help="Delete each request after this many hours.")] = 24,
    sample_percent: Annotated[float, typer.Option(max=100, help="Share of the requests to store.")] = 100.0,
    redact: Annotated[
        list[str] | None, typer.Option(help="Replace this kind of data: email, ip_address, credit_card. Repeatable.")
    ] = None,
    redact_pattern: Annotated[
        list[str] | None, typer.Option(help="Replace what this RE2 expression matches. Repeatable.")
    ] = None,
) -> None:
    """Start to store the requests that a deployment answers, without their answers."""
    cli = context_of(context)
    with cli.client() as client:
        capture = client.captures.set(
            deployment_id,
            hours=hours,
            sample_percent=sample_percent,
            redact=redact or [],
            redact_patterns=redact_pattern or [],
        )
        cli.output.one(capture)


@app.command()
def show(context: typer.Context, deployment_id: str) -> None:
    """Show how many requests are stored."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.captures.retrieve(deployment_id))


@app.command()
def file(context: typer.Context, deployment_id: str) -> None:
    """Make a file of prompts from the stored requests, for `pipelines create`."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.captures.file(deployment_id))


@app.command()
def end(context: typer.Context, deployment_id: str) -> None:
    """End a capture, and delete the stored requests."""
    cli = context_of(context)
    with cli.client() as client:
        client.captures.end(deployment_id)
        cli.output.one({"deployment_id": deployment_id, "deleted": True})
