"""What many commands share: to list, show and delete objects of a kind, and to send the files that they name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.types import File
from slipstream.uploads import PART_BYTES


def add_list(app: typer.Typer, resource: str, columns: Sequence[str]) -> None:
    """Args: resource: the client's attribute."""

    @app.command("list")
    def list_(context: typer.Context) -> None:
        """All of them, the newest first."""
        own = context_of(context)
        with own.client() as client:
            own.output.many(getattr(client, resource).list(), columns)


def add_show(app: typer.Typer, resource: str) -> None:
    @app.command()
    def show(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """All that is known of one."""
        own = context_of(context)
        with own.client() as client:
            own.output.one(getattr(client, resource).retrieve(identity))


def add_delete(app: typer.Typer, resource: str) -> None:
    @app.command()
    def delete(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """For good."""
        own = context_of(context)
        with own.client() as client:
            getattr(client, resource).delete(identity)
            own.output.one({"id": identity, "deleted": True})


def send(own: Context, client: Client, path: Path, *, purpose: str, mime_type: str = "application/jsonl") -> File:
    """In parts if it is large, and then saying how to go on if it breaks off."""
    num_bytes = path.stat().st_size
    if num_bytes <= PART_BYTES:
        return client.files.upload(path, purpose=purpose)
    upload = client.uploads.create(filename=path.name, num_bytes=num_bytes, purpose=purpose, mime_type=mime_type)
    own.output.note(f"If this breaks off: slipstream files upload {path} --resume {upload.id}")
    return client.uploads.send(upload.id, path)


def file_id_of(own: Context, client: Client, given: str) -> str:
    """Of a file here, which is sent, or of one that is there already.

    Raises: typer.BadParameter: it looks like a path, and nothing is there.
    """
    if Path(given).is_file():
        return send(own, client, Path(given), purpose="batch").id
    if Path(given).suffix or len(Path(given).parts) != 1:
        raise typer.BadParameter(f"there is no file {given} here")
    return given
