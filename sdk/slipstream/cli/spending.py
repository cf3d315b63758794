"""`slipstream caps` and `slipstream quotes`."""

from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show
from slipstream.cli.context import context_of

caps = typer.Typer(no_args_is_help=True, help="Spend caps: what may be spent in a calendar month, in US dollars.")
quotes = typer.Typer(no_args_is_help=True, help="Quotes: what a batch of a dataset will cost, and may cost.")


add_list(caps, "spend_caps", ("id", "project_id", "amount", "spent", "is_reached"))
add_delete(caps, "spend_caps")


@caps.command()
def create(
    context: typer.Context,
    amount: float,
    project_id: Annotated[str | None, typer.Option(help="Else for the whole organization.")] = None,
) -> None:
    """Pause what costs more than that in a month."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.spend_caps.create(amount=amount, project_id=project_id))


@caps.command()
def change(context: typer.Context, cap_id: str, amount: float) -> None:
    """What a raised cap lets go on does so where it stopped."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.spend_caps.update(cap_id, amount=amount))


add_list(quotes, "quotes", ("id", "dataset_id", "basis", "status", "created_at"))
add_show(quotes, "quotes")


@quotes.command("create")
def create_quote(
    context: typer.Context,
    dataset_id: str,
    basis: Annotated[
        str, typer.Option(help="pilot: answers a few of the rows first; history: goes by earlier ones.")
    ] = "pilot",
    cap: Annotated[float | None, typer.Option(help="What is run under the quote is paused there.")] = None,
) -> None:
    """Ask what a batch of the dataset will cost."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.quotes.create(dataset_id=dataset_id, basis=basis, cap=cap))


@quotes.command("cap")
def cap_quote(
    context: typer.Context, quote_id: str, amount: Annotated[float | None, typer.Argument(help="None: no cap.")] = None
) -> None:
    """Change where what is run under it is paused."""
    own = context_of(context)
    with own.client() as client:
        own.output.one(client.quotes.update(quote_id, cap=amount))
