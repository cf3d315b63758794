"""`slipstream caps` and `slipstream quotes`."""

from typing import Annotated

import typer

from slipstream.cli.context import context_of

caps = typer.Typer(no_args_is_help=True, help="Spend caps: what may be spent in a calendar month, in US dollars.")
quotes = typer.Typer(no_args_is_help=True, help="Quotes: what a batch of a dataset will cost, and may cost.")


@caps.command()
def create(
    context: typer.Context,
    amount: float,
    project_id: Annotated[str | None, typer.Option(help="Else for the whole organization.")] = None,
) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.spend_caps.create(amount=amount, project_id=project_id))


@caps.command("list")
def list_caps(context: typer.Context) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.many(client.spend_caps.list(), ("id", "project_id", "amount", "spent", "is_reached"))


@caps.command()
def change(context: typer.Context, cap_id: str, amount: float) -> None:
    """What a raised cap lets go on does so where it stopped."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.spend_caps.update(cap_id, amount=amount))


@caps.command()
def delete(context: typer.Context, cap_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        client.spend_caps.delete(cap_id)
        own.output.one({"id": cap_id, "deleted": True})


@quotes.command("create")
def create_quote(
    context: typer.Context,
    dataset_id: str,
    basis: Annotated[
        str, typer.Option(help="pilot: answers a few of the rows first; history: goes by earlier ones.")
    ] = "pilot",
    cap: Annotated[float | None, typer.Option(help="What is run under the quote is paused there.")] = None,
) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.quotes.create(dataset_id=dataset_id, basis=basis, cap=cap))


@quotes.command("show")
def show_quote(context: typer.Context, quote_id: str) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.quotes.retrieve(quote_id))


@quotes.command("cap")
def cap_quote(
    context: typer.Context, quote_id: str, amount: Annotated[float | None, typer.Argument(help="None: no cap.")] = None
) -> None:
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.quotes.update(quote_id, cap=amount))
