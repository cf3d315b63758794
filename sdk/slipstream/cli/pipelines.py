"""`slipstream pipelines`."""

import json
from typing import Annotated, Any

import typer

from slipstream.cli.common import add_list, add_show, file_id_of
from slipstream.cli.context import Context, context_of
from slipstream.cli.output import Watch
from slipstream.client import Client

app = typer.Typer(no_args_is_help=True, help="Pipelines: from prompts to a faster endpoint.")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter("expected a JSON object")
    return value


add_list(app, "pipelines", ("id", "name", "model", "status", "created_at"))
add_show(app, "pipelines")


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
    """Prompts in, an endpoint out: distil, train, evaluate, gate, deploy."""
    own = context_of(context)
    is_distilled = prompts.startswith("distill_")
    with own.client() as client:
        pipeline = client.pipelines.create(
            name=name,
            model=model,
            prompts_file=None if is_distilled else file_id_of(own, client, prompts),
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


@app.command()
def wait(context: typer.Context, pipeline_id: str) -> None:
    """Until it is live; exit code 4 if it fails, is rejected or cancelled."""
    own = context_of(context)
    with own.client() as client:
        _wait(own, client, pipeline_id)


@app.command()
def cancel(context: typer.Context, pipeline_id: str) -> None:
    """Stages that are finished are kept; `resume` goes on behind them."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.pipelines.cancel(pipeline_id))


@app.command()
def resume(context: typer.Context, pipeline_id: str) -> None:
    """Go on from the stage that failed or was cancelled."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.pipelines.resume(pipeline_id))


def _wait(own: Context, client: Client, pipeline_id: str) -> None:
    with Watch(own.output) as watch:
        pipeline = client.pipelines.wait(pipeline_id, on_progress=watch.pipeline)
    own.output.one(pipeline)
