"""`slipstream keys`."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from slipstream.cli.common import add_list, add_show
from slipstream.cli.context import context_of

app = typer.Typer(no_args_is_help=True, help="API keys and their permissions.")

add_list(app, "api_keys", ("id", "name", "hint", "scopes", "expires_at", "revoked_at", "last_used_at"))
add_show(app, "api_keys")


@app.command()
def create(
    context: typer.Context,
    name: str,
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help="Scope of the key; may be repeated. Default: your own scopes.")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Lifetime in days.")] = None,
    project_id: Annotated[str | None, typer.Option(help="The project that pays for requests with the key.")] = None,
) -> None:
    """Create a key; it is shown only once."""
    cli = context_of(context)
    expires_at = None if days is None else int((datetime.now(UTC) + timedelta(days=days)).timestamp())
    with cli.client() as client:
        cli.output.one(client.api_keys.create(name=name, scopes=scopes, project_id=project_id, expires_at=expires_at))


@app.command()
def rotate(
    context: typer.Context,
    key_id: str,
    grace_seconds: Annotated[int | None, typer.Option(min=0, help="Time for which the old key stays valid.")] = None,
) -> None:
    """Replace a key by a new one with the same rights; the new key is shown only once."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.api_keys.rotate(key_id, grace_seconds=grace_seconds))


@app.command()
def revoke(context: typer.Context, key_id: str) -> None:
    """Revoke a key; the service refuses it from the next request on."""
    cli = context_of(context)
    with cli.client() as client:
        client.api_keys.revoke(key_id)
        cli.output.one({"id": key_id, "revoked": True})
