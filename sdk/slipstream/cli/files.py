"""`slipstream files`."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.context import context_of
from slipstream.uploads import PART_BYTES

app = typer.Typer(no_args_is_help=True, help="Files: prompts in, answers out.")

COLUMNS = ("id", "filename", "bytes", "purpose", "status", "created_at")


@app.command()
def upload(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    purpose: str = "batch",
    resume: Annotated[str | None, typer.Option(help="Go on with the upload of this id.")] = None,
) -> None:
    """Send a file; a large one goes in parts."""
    own = context_of(context)
    num_bytes = path.stat().st_size
    with own.client() as client:
        if resume is None and num_bytes <= PART_BYTES:
            own.output.one(client.files.upload(path, purpose=purpose))
            return
        if resume is None:
            resume = client.uploads.create(
                filename=path.name, num_bytes=num_bytes, purpose=purpose, mime_type="application/jsonl"
            ).id
            own.output.note(f"If this breaks off: slipstream files upload {path} --resume {resume}")
        own.output.one(client.uploads.send(resume, path))


@app.command("list")
def list_(context: typer.Context, purpose: str | None = None) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.files.list(purpose=purpose), COLUMNS)


@app.command()
def show(context: typer.Context, file_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.files.retrieve(file_id))


@app.command()
def download(context: typer.Context, file_id: str, to: Path) -> None:
    """Write the content to a file, which appears whole or not at all."""
    own = context_of(context)
    with own.client() as client:
        own.output.one({"path": str(client.files.download(file_id, to))})


@app.command()
def delete(context: typer.Context, file_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        client.files.delete(file_id)
        own.output.one({"id": file_id, "deleted": True})
