"""`slipstream adapters`, `slipstream rollouts`, `slipstream deployments metrics`, `slipstream deployments adapters`."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show
from slipstream.cli.context import context_of
from slipstream.cli.serving import deployments

adapters = typer.Typer(no_args_is_help=True, help="LoRA adapters, served in addition to a deployment's model.")
rollouts = typer.Typer(no_args_is_help=True, help="Rollouts: trials of another speculator on a share of the traffic.")


@deployments.command()
def metrics(
    context: typer.Context,
    deployment_id: str,
    bucket_width: Annotated[str, typer.Option(help="Length of an interval: 1m, 1h or 1d.")] = "1m",
) -> None:
    """Show acceptance, speed and latency for each time interval that has requests."""
    cli = context_of(context)
    with cli.client() as client:
        intervals = client.deployments.metrics(deployment_id, bucket_width=bucket_width)
        columns = ("start_time", "num_requests", "acceptance_length", "tokens_per_second", "latency_seconds")
        cli.output.many((interval for interval in intervals if interval.num_requests), columns)


@deployments.command("adapters")
def serve_adapters(
    context: typer.Context,
    deployment_id: str,
    adapter_ids: Annotated[list[str] | None, typer.Argument(help="Ids of the adapters to serve.")] = None,
) -> None:
    """Replace a deployment's adapters; the endpoint finishes its current requests and restarts."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.deployments.update(deployment_id, adapters=adapter_ids or []))


add_list(adapters, "adapters", ("id", "name", "model", "rank", "bytes", "created_at"))
add_show(adapters, "adapters")
add_delete(adapters, "adapters")


@adapters.command()
def upload(context: typer.Context, folder: Path, name: str, model: str) -> None:
    """Upload a folder written by peft."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.adapters.upload(folder, name=name, model=model))


@rollouts.command("create")
def create_rollout(
    context: typer.Context,
    deployment_id: str,
    speculator_id: str,
    share: Annotated[int | None, typer.Option(help="Percent of the requests, 1 to 50.")] = None,
    min_requests: int | None = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Answer copies of requests, and compare the answers.")
    ] = False,
    watch_seconds: Annotated[int | None, typer.Option(help="How long to watch the promoted speculator.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the rollout is promoted or rolled back.")] = False,
) -> None:
    """Try another speculator on a share of the requests; the measurements decide whether it is kept."""
    cli = context_of(context)
    with cli.client() as client:
        rollout = client.rollouts.create(
            deployment_id,
            speculator_id=speculator_id,
            mode="shadow" if shadow else None,
            share_percent=share,
            min_requests=min_requests,
            watch_seconds=watch_seconds,
        )
        cli.output.one(client.rollouts.wait(deployment_id, rollout.id) if wait else rollout)


@rollouts.command("list")
def list_rollouts(context: typer.Context, deployment_id: str) -> None:
    """List the rollouts of a deployment, newest first."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.many(client.rollouts.list(deployment_id), ("id", "speculator_id", "status", "reason", "created_at"))


@rollouts.command("show")
def show_rollout(context: typer.Context, deployment_id: str, rollout_id: str) -> None:
    """Show all fields of a rollout."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.rollouts.retrieve(deployment_id, rollout_id))


@rollouts.command("cancel")
def cancel_rollout(context: typer.Context, deployment_id: str, rollout_id: str) -> None:
    """Cancel a rollout and return to the previous speculator."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.rollouts.cancel(deployment_id, rollout_id))
