"""Commands that exist for many kinds of objects (list, show, delete), and the upload of files named as arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.types import File
from slipstream.uploads import PART_BYTES


def add_list(app: typer.Typer, resource: str, columns: Sequence[str]) -> None:
    """Args: resource: name of the client's attribute."""

    @app.command("list")
    def list_(context: typer.Context) -> None:
        """List all objects, newest first."""
        own = context_of(context)
        with own.client() as client:
            own.output.many(getattr(client, resource).list(), columns)


def add_show(app: typer.Typer, resource: str) -> None:
    @app.command()
    def show(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """Show all fields of one object."""
        own = context_of(context)
        with own.client() as client:
            own.output.one(getattr(client, resource).retrieve(identity))


def add_delete(app: typer.Typer, resource: str) -> None:
    @app.command()
    def delete(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """Delete an object permanently."""
        own = context_of(context)
        with own.client() as client:
            getattr(client, resource).delete(identity)
            own.output.one({"id": identity, "deleted": True})


def send(own: Context, client: Client, path: Path, *, purpose: str, mime_type: str = "application/jsonl") -> File:
    """Uploads a file; a large one is sent in parts, with a note on how to continue an interrupted upload."""
    num_bytes = path.stat().st_size
    if num_bytes <= PART_BYTES:
        return client.files.upload(path, purpose=purpose)
    upload = client.uploads.create(filename=path.name, num_bytes=num_bytes, purpose=purpose, mime_type=mime_type)
    own.output.note(f"If the upload is interrupted, run: slipstream files upload {path} --resume {upload.id}")
    return client.uploads.send(upload.id, path)


def file_id_of(own: Context, client: Client, given: str) -> str:
    """Uploads `given` if it is a local file and returns the new file's id; otherwise returns `given`, which is an id.

    Raises: typer.BadParameter: the argument looks like a path that does not exist.
    """
    if Path(given).is_file():
        return send(own, client, Path(given), purpose="batch").id
    if Path(given).suffix or len(Path(given).parts) != 1:
        raise typer.BadParameter(f"there is no local file {given}")
    return given
