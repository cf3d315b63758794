"""`slipstream pipelines`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.context import Context, context_of
from slipstream.cli.output import Watch
from slipstream.client import Client

app = typer.Typer(no_args_is_help=True, help="Pipelines: from prompts to a faster endpoint.")

COLUMNS = ("id", "name", "model", "status", "created_at")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("expected a JSON object")
    return value


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What callers will put into `model`.")],
    model: str,
    prompts: Annotated[str, typer.Argument(help="A file here, the id of an uploaded one, or of a distillation.")],
    held_out: Annotated[int | None, typer.Option(help="So many prompts are kept for the evaluation.")] = None,
    held_out_file: Annotated[str | None, typer.Option(help="Or the id of a file of them.")] = None,
    training: Annotated[Any, typer.Option(parser=_object, metavar="JSON", help='{"kind": "eagle3", …}')] = None,
    gate: Annotated[Any, typer.Option(parser=_object, metavar="JSON", help='{"min_speedup": 1.25, …}')] = None,
    deploy: bool = True,
    quote_id: Annotated[str | None, typer.Option(help="Whose cap pauses it.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is live.")] = False,
) -> None:
    own = context_of(context)
    is_distilled = prompts.startswith("distill_")
    with own.client() as client:
        pipeline = client.pipelines.create(
            name=name,
            model=model,
            prompts_file=None if is_distilled else _prompts_file(client, prompts),
            distillation_id=prompts if is_distilled else None,
            held_out=held_out,
            held_out_file=held_out_file,
            training=training,
            gate=gate,
            deploy=deploy,
            quote_id=quote_id,
        )
        if wait:
            _wait(own, client, pipeline.id)
        else:
            own.output.one(pipeline)


@app.command("list")
def list_(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.pipelines.list(), COLUMNS)


@app.command()
def show(context: typer.Context, pipeline_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.pipelines.retrieve(pipeline_id))


@app.command()
def wait(context: typer.Context, pipeline_id: str) -> None:
    """Until it is live; exit code 4 if it fails, is rejected or cancelled."""
    own = context_of(context)
    with own.client() as client:
        _wait(own, client, pipeline_id)


@app.command()
def cancel(context: typer.Context, pipeline_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.pipelines.cancel(pipeline_id))


@app.command()
def resume(context: typer.Context, pipeline_id: str) -> None:
    """Go on from the stage that failed or was cancelled."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.pipelines.resume(pipeline_id))


def _prompts_file(client: Client, prompts: str) -> str:
    return client.files.upload(prompts).id if Path(prompts).is_file() else prompts


def _wait(own: Context, client: Client, pipeline_id: str) -> None:
    with Watch(own.output) as watch:
        pipeline = client.pipelines.wait(pipeline_id, on_progress=watch.pipeline)
    own.output.one(pipeline)
