"""The command's entry point and its exit codes.

Exit codes: 0 success · 1 the service returned an error or the network failed · 2 the command line is wrong, or there is
no login · 3 the object does not exist · 4 the batch, pipeline or evaluation failed, was rejected or cancelled, the
dataset has bad lines, or a certificate or an audit finds an answer that differs · 130 interrupted
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slipstream.cli import (
    batches,
    captures,
    datasets,
    deploying,
    distillations,
    evaluations,
    files,
    jobs,
    keys,
    models,
    pipelines,
    serving,
    spending,
)
from slipstream.cli.config import Login, write_login
from slipstream.cli.context import Context, context_of
from slipstream.cli.output import Output
from slipstream.client import Client
from slipstream.errors import (
    APIConnectionError,
    APIStatusError,
    AuthenticationError,
    BatchFailed,
    EvaluationFailed,
    NotFoundError,
    PipelineFailed,
    SlipstreamError,
)

API_ERROR = 1
NOT_FOUND = 3
JOB_FAILED = 4


class ErrorReportingGroup(TyperGroup):
    """Turns the client's exceptions into a message and an exit code. After a usage error, Typer itself exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (SlipstreamError, OSError, ValueError) as error:
            status_error = error if isinstance(error, APIStatusError) else None
            code, request_id = (status_error.code, status_error.request_id) if status_error else (None, None)
            ctx.obj.output.error(str(error), code=code, request_id=request_id)
            if advice := _advice(error):
                ctx.obj.output.advice(advice)
            raise typer.Exit(_exit_code(error)) from error


app = typer.Typer(cls=ErrorReportingGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(files.app, name="files")
app.add_typer(datasets.app, name="datasets")
app.add_typer(batches.app, name="batches")
app.add_typer(distillations.app, name="distillations")
app.add_typer(models.app, name="models")
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(deploying.adapters, name="adapters")
app.add_typer(deploying.rollouts, name="rollouts")
app.add_typer(spending.caps, name="caps")
app.add_typer(spending.quotes, name="quotes")
app.add_typer(spending.invoices, name="invoices")
app.add_typer(serving.speculators, name="speculators")
app.add_typer(serving.deployments, name="deployments")
app.add_typer(evaluations.app, name="evaluations")
app.add_typer(evaluations.certificates, name="certificates")
app.command("verify")(evaluations.verify_archive_)
app.add_typer(captures.app, name="captures")
app.add_typer(jobs.app, name="jobs")
app.command()(jobs.events)
app.add_typer(keys.app, name="keys")


@app.callback()
def begin(
    context: typer.Context,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON: one line per object.")] = False,
) -> None:
    """Slipstream: faster answers without changing a single token."""
    context.obj = Context(Output(is_json=is_json))


@app.command()
def login(
    context: typer.Context,
    base_url: Annotated[str, typer.Option(prompt="URL of the API, ending in /v1", envvar="SLIPSTREAM_BASE_URL")],
    api_key: Annotated[str, typer.Option(prompt="API key", hide_input=True, envvar="SLIPSTREAM_API_KEY")],
) -> None:
    """Store URL and key after checking them with the service."""
    with Client(base_url, api_key) as client:
        next(client.models.list(), None)
    path = write_login(Login(base_url, api_key))
    context_of(context).output.one({"base_url": base_url, "path": str(path)})


@app.command()
def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The name of a deployment.")],
    prompt: Annotated[str | None, typer.Argument(help="The question; default: read from standard input.")] = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
) -> None:
    """Ask one question; the answer is streamed."""
    cli = context_of(context)
    text = typer.get_text_stream("stdin").read() if prompt is None else prompt
    options = {"max_tokens": max_tokens, "temperature": temperature}
    given_options = {name: value for name, value in options.items() if value is not None}
    messages = [{"role": "user", "content": text}]
    with cli.client() as client:
        if cli.output.is_json:
            cli.output.one(client.chat.create(model=model, messages=messages, **given_options))
            return
        for piece in client.chat.stream(model=model, messages=messages, **given_options):
            cli.output.text(piece.text, end="")
        cli.output.text("")


@app.command()
def audit(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The name of a deployment.")],
    file: Annotated[Path, typer.Argument(exists=True, help='JSON lines: {"request": ..., "response": ...}.')],
) -> None:
    """Score earlier answers again; the exit code is 4 if the verdict on any answer is not `equal`."""
    cli = context_of(context)
    is_equal = True
    with cli.client() as client, file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            values = json.loads(line)
            verdict = client.audits.create(model=model, request=values["request"], response=values["response"])
            first = next((choice for choice in verdict.choices if choice["verdict"] != "equal"), {})
            found = {name: first[name] for name in ("index", "differs", "position", "expected", "actual") if first}
            parts = {"parts": ", ".join(part["part"] for part in verdict.parts)} if verdict.parts else {}
            cli.output.one({"line": number, "verdict": verdict.verdict, **found, **parts})
            is_equal = is_equal and verdict.is_equal
    if not is_equal:
        raise typer.Exit(JOB_FAILED)


@app.command()
def usage(
    context: typer.Context,
    days: Annotated[int, typer.Option(min=1, max=366, help="Length of the period that ends now.")] = 30,
) -> None:
    """Show usage and its cost."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.usage.total(start_time=int(time.time()) - days * 86400))


def _advice(error: Exception) -> str | None:
    """Returns advice for errors that the user can fix with a `slipstream` command."""
    if isinstance(error, AuthenticationError):
        return "Store another key with `slipstream login`; SLIPSTREAM_API_KEY takes precedence over it."
    if isinstance(error, APIConnectionError):
        return (
            "Check that the service runs at this URL. `slipstream login` stores another URL; "
            "SLIPSTREAM_BASE_URL takes precedence over it."
        )
    if isinstance(error, APIStatusError) and error.code == "unknown_url":
        return "The URL of the API must end in /v1; set it with `slipstream login` or SLIPSTREAM_BASE_URL."
    if isinstance(error, PipelineFailed) and error.pipeline.status in ("failed", "cancelled"):
        return f"`slipstream pipelines resume {error.pipeline.id}` continues from there."
    return None


def _exit_code(error: Exception) -> int:
    if isinstance(error, (BatchFailed, EvaluationFailed, PipelineFailed)):
        return JOB_FAILED
    return NOT_FOUND if isinstance(error, NotFoundError) else API_ERROR
