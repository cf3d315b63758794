"""`slipstream evaluations` and `slipstream certificates`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.archives import verify_archive
from slipstream.certificates import EQUAL, verify
from slipstream.cli.common import add_show, file_id_of
from slipstream.cli.config import config_path
from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.errors import CertificateError
from slipstream.progress import Watch

app = typer.Typer(no_args_is_help=True, help="Evaluations: comparisons of answers with and without a speculator.")
certificates = typer.Typer(no_args_is_help=True, help="Certificates: signed results of evaluations.")

DIFFERENT = 4
_COLUMNS = ("id", "speculator_id", "model", "status", "result", "created_at")


add_show(app, "evaluations")


@app.command()
def create(
    context: typer.Context,
    speculator_id: str,
    prompts: Annotated[str | None, typer.Option(help="A local file or a file id; default: held-out prompts.")] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Number of simultaneous requests; may be repeated. Default: 1, 4, 16, 32.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum number of tokens of an answer.")] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(help="Price of a GPU hour in USD, from which the report computes costs.")
    ] = None,
    compare_with: Annotated[
        list[str] | None,
        typer.Option(help="A further drafter: a speculator's id, suffix or ngram; may be given up to four times."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the report is ready.")] = False,
) -> None:
    """Answer prompts with and without the speculator, and compare answers and speed."""
    cli = context_of(context)
    with cli.client() as client:
        evaluation = client.evaluations.create(
            speculator_id=speculator_id,
            prompts_file=None if prompts is None else file_id_of(cli, client, prompts),
            concurrencies=concurrency or None,
            max_tokens=max_tokens,
            price_per_gpu_hour=price_per_gpu_hour,
            compare_with=compare_with or None,
        )
        if wait:
            _wait(cli, client, evaluation.id)
        else:
            cli.output.one(evaluation)


@app.command("list")
def list_(
    context: typer.Context,
    speculator_id: Annotated[str | None, typer.Option(help="Only evaluations of this speculator.")] = None,
) -> None:
    """List evaluations, newest first."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.many(client.evaluations.list(speculator_id=speculator_id), _COLUMNS)


@app.command()
def wait(context: typer.Context, evaluation_id: str) -> None:
    """Wait until the report is ready; the exit code is 4 if the evaluation fails or is cancelled."""
    cli = context_of(context)
    with cli.client() as client:
        _wait(cli, client, evaluation_id)


@app.command()
def cancel(context: typer.Context, evaluation_id: str) -> None:
    """Cancel an evaluation; there will be no report."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.evaluations.cancel(evaluation_id))


@app.command()
def certificate(context: typer.Context, evaluation_id: str, to: Path) -> None:
    """Save the signed certificate (JSON)."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one({"path": str(client.evaluations.save_certificate(evaluation_id, to))})


@app.command()
def plot(context: typer.Context, evaluation_id: str, to: Path) -> None:
    """Save the evaluation's plot (PNG)."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one({"path": str(client.evaluations.plot(evaluation_id, to))})


@certificates.command()
def key(
    context: typer.Context,
    to: Annotated[
        Path | None, typer.Argument(help="The file to write. Default: the file that `certificates verify` reads.")
    ] = None,
) -> None:
    """Download the service's public key; this is needed once."""
    cli, path = context_of(context), to or _saved_key_path()
    with cli.client() as client:
        pem = client.evaluations.public_key()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pem, encoding="ascii")
    cli.output.one({"path": str(path)})


@certificates.command("verify")
def verify_(
    context: typer.Context,
    certificate_file: Annotated[Path, typer.Argument(metavar="FILE")],
    public_key: Annotated[
        Path | None, typer.Option(help="The public key, a PEM file. Default: the file that `certificates key` wrote.")
    ] = None,
) -> None:
    """Verify a certificate offline.

    The exit code is 1 if the certificate is invalid, and 4 if the certificate says that answers differ.
    """
    content = json.loads(certificate_file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise CertificateError("the file does not contain a certificate")
    _show_statement(context_of(context), verify(content, _read_public_key(public_key)))


def verify_archive_(
    context: typer.Context,
    archive: Annotated[Path, typer.Argument(exists=True, help="Saved with `slipstream speculators archive`.")],
    public_key: Annotated[
        Path | None, typer.Option(help="PEM; default: the key that `certificates key` saved.")
    ] = None,
) -> None:
    """Verify a speculator's archive offline: its files, its weights and its certificate.

    The exit code is 1 if anything is missing, modified or forged, and 4 if the certificate says that answers differ.
    """
    _show_statement(context_of(context), verify_archive(archive, _read_public_key(public_key)))


def _read_public_key(path: Path | None) -> bytes:
    """Args: path: None: where `certificates key` saved it. Raises: CertificateError: there is no such file."""
    path = path or _saved_key_path()
    if not path.exists():
        raise CertificateError(f"there is no public key at {path}: run `slipstream certificates key` once")
    return path.read_bytes()


def _show_statement(cli: Context, statement: Mapping[str, Any]) -> None:
    """Prints a verified statement. The exit code is 4 if it says that answers differ."""
    cli.output.one(statement)
    if statement.get("result") != EQUAL:
        cli.output.note("The signature is valid, but some answers differ from those of the model.")
        raise typer.Exit(DIFFERENT)


def _saved_key_path() -> Path:
    return config_path().with_name("certificate_key.pem")


def _wait(cli: Context, client: Client, evaluation_id: str) -> None:
    with Watch(cli.output.errors, disable=cli.output.is_json) as watch:
        evaluation = client.evaluations.wait(evaluation_id, on_progress=watch.show)
    cli.output.one(evaluation)
