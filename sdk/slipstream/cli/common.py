"""The commands `list`, `show` and `delete`, which many resources have, and the upload of files given as arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.context import Context, context_of
from slipstream.client import Client
from slipstream.types import File
from slipstream.uploads import PART_BYTES


def add_list(app: typer.Typer, resource: str, columns: Sequence[str]) -> None:
    """Adds the command `list`. Args: resource: the attribute of `Client`, such as `batches`."""

    @app.command("list")
    def list_(context: typer.Context) -> None:
        """List all objects, newest first."""
        cli = context_of(context)
        with cli.client() as client:
            cli.output.many(getattr(client, resource).list(), columns)


def add_show(app: typer.Typer, resource: str) -> None:
    @app.command()
    def show(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """Show all fields of one object."""
        cli = context_of(context)
        with cli.client() as client:
            cli.output.one(getattr(client, resource).retrieve(identity))


def add_delete(app: typer.Typer, resource: str) -> None:
    @app.command()
    def delete(context: typer.Context, identity: Annotated[str, typer.Argument(metavar="ID")]) -> None:
        """Delete an object permanently."""
        cli = context_of(context)
        with cli.client() as client:
            getattr(client, resource).delete(identity)
            cli.output.one({"id": identity, "deleted": True})


def send(cli: Context, client: Client, path: Path, *, purpose: str, mime_type: str = "application/jsonl") -> File:
    """Uploads a file. Before a large file is sent in parts, a note says how to continue an interrupted upload."""
    num_bytes = path.stat().st_size
    if num_bytes <= PART_BYTES:
        return client.files.upload(path, purpose=purpose)
    upload = client.uploads.create(filename=path.name, num_bytes=num_bytes, purpose=purpose, mime_type=mime_type)
    cli.output.note(f"If the upload is interrupted, run: slipstream files upload {path} --resume {upload.id}")
    return client.uploads.send(upload.id, path)


def file_id_of(cli: Context, client: Client, path_or_id: str) -> str:
    """Returns the id of a file: uploads `path_or_id` if it is a local file, and returns it unchanged otherwise.

    Raises: typer.BadParameter: the argument looks like a path that does not exist.
    """
    if Path(path_or_id).is_file():
        return send(cli, client, Path(path_or_id), purpose="batch").id
    if Path(path_or_id).suffix or len(Path(path_or_id).parts) != 1:
        raise typer.BadParameter(f"there is no local file {path_or_id}")
    return path_or_id
