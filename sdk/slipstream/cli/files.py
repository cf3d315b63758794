"""`slipstream files`."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_show, send
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="Files: uploaded files, and files that the service creates.")

COLUMNS = ("id", "filename", "bytes", "purpose", "status", "created_at")


@app.command()
def upload(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    purpose: str = "batch",
    resume: Annotated[str | None, typer.Option(help="Continue the upload with this id.")] = None,
) -> None:
    """Upload a file; a large one is sent in parts."""
    cli = context_of(context)
    with cli.client() as client:
        if resume is None:
            cli.output.one(send(cli, client, path, purpose=purpose))
        else:
            cli.output.one(client.uploads.send(resume, path))


@app.command("list")
def list_(
    context: typer.Context, purpose: Annotated[str | None, typer.Option(help="Only files with this purpose.")] = None
) -> None:
    """List files, newest first."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.many(client.files.list(purpose=purpose), COLUMNS)


add_show(app, "files")


@app.command()
def download(context: typer.Context, file_id: str, to: Path) -> None:
    """Download a file; the same command continues an interrupted download."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one({"path": str(client.files.download(file_id, to))})


add_delete(app, "files")
