"""`slipstream pipelines`."""

import json
from typing import Annotated, Any

import typer

from slipstream.cli.common import add_list, add_show, file_id_of
from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.progress import Watch

app = typer.Typer(no_args_is_help=True, help="Pipelines: from prompts to a faster endpoint.")


def _json_object(text: str) -> dict[str, Any]:
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
    name: Annotated[str, typer.Argument(help="The endpoint's name, which requests send as `model`.")],
    model: str,
    prompts: Annotated[str, typer.Argument(help="A local file, a file id, or a distillation id.")],
    answers: Annotated[str | None, typer.Option(help="`file` if the rows of the file have the answers.")] = None,
    held_out: Annotated[int | None, typer.Option(help="Number of prompts to take out for the evaluation.")] = None,
    held_out_file: Annotated[str | None, typer.Option(help="Id of a file of prompts for the evaluation.")] = None,
    on_contamination: Annotated[
        str | None, typer.Option(help="What to do if training prompts resemble held-out prompts: warn, drop or refuse.")
    ] = None,
    on_sensitive: Annotated[
        str | None, typer.Option(help="What to do if a file has secrets or personal data: warn, redact or refuse.")
    ] = None,
    training: Annotated[Any, typer.Option(parser=_json_object, metavar="JSON", help='{"kind": "eagle3", …}')] = None,
    gate: Annotated[Any, typer.Option(parser=_json_object, metavar="JSON", help='{"min_speedup": 1.25, …}')] = None,
    deploy: bool = True,
    quote_id: Annotated[str | None, typer.Option(help="A quote whose cap limits the cost.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the pipeline has ended.")] = False,
) -> None:
    """Start a pipeline from prompts to an endpoint: distil, train, evaluate, gate, deploy."""
    cli = context_of(context)
    is_distilled = prompts.startswith("distill_")
    with cli.client() as client:
        pipeline = client.pipelines.create(
            name=name,
            model=model,
            prompts_file=None if is_distilled else file_id_of(cli, client, prompts),
            distillation_id=prompts if is_distilled else None,
            answers=answers,
            held_out=held_out,
            held_out_file=held_out_file,
            on_contamination=on_contamination,
            on_sensitive=on_sensitive,
            training=training,
            gate=gate,
            deploy=deploy,
            quote_id=quote_id,
        )
        if wait:
            _wait(cli, client, pipeline.id)
        else:
            cli.output.one(pipeline)


@app.command()
def wait(context: typer.Context, pipeline_id: str) -> None:
    """Wait until the pipeline has ended; the exit code is 4 if it failed, was rejected or was cancelled."""
    cli = context_of(context)
    with cli.client() as client:
        _wait(cli, client, pipeline_id)


@app.command()
def cancel(context: typer.Context, pipeline_id: str) -> None:
    """Cancel a pipeline; finished stages are kept, and `resume` continues after them."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.pipelines.cancel(pipeline_id))


@app.command()
def resume(context: typer.Context, pipeline_id: str) -> None:
    """Continue a pipeline from the stage that failed or was cancelled."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.pipelines.resume(pipeline_id))


def _wait(cli: Context, client: Client, pipeline_id: str) -> None:
    with Watch(cli.output.errors, disable=cli.output.is_json) as watch:
        pipeline = client.pipelines.wait(pipeline_id, on_progress=watch.show)
    cli.output.one(pipeline)
