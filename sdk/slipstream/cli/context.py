"""The context of every command: its output, and a client with the stored login."""

from dataclasses import dataclass

import typer

from slipstream.cli.config import read_login
from slipstream.cli.output import Output
from slipstream.client import Client


@dataclass(frozen=True, slots=True)
class Context:
    output: Output

    def client(self) -> Client:
        """Raises: typer.BadParameter: there is no login."""
        try:
            login = read_login()
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if login is None:
            raise typer.BadParameter(
                "not logged in: run `slipstream login`, or set SLIPSTREAM_BASE_URL and SLIPSTREAM_API_KEY"
            )
        return Client(login.base_url, login.api_key)


def context_of(context: typer.Context) -> Context:
    root: Context = context.find_root().obj
    return root
