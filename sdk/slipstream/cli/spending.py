"""`slipstream caps`, `slipstream quotes` and `slipstream invoices`."""

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.common import add_delete, add_list, add_show
from slipstream.cli.context import context_of

caps = typer.Typer(no_args_is_help=True, help="Spend caps: limits per calendar month, in US dollars.")
quotes = typer.Typer(no_args_is_help=True, help="Quotes: cost estimates for batches, with an optional spending cap.")
invoices = typer.Typer(no_args_is_help=True, help="Invoices: what a month (UTC) such as 2026-01 costs.")


add_list(caps, "spend_caps", ("id", "project_id", "amount", "spent", "is_reached"))
add_delete(caps, "spend_caps")


@caps.command()
def create(
    context: typer.Context,
    amount: float,
    project_id: Annotated[str | None, typer.Option(help="Project to limit; default: the whole organization.")] = None,
) -> None:
    """Create a cap; work is paused when the month's spending reaches the amount."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.spend_caps.create(amount=amount, project_id=project_id))


@caps.command()
def change(context: typer.Context, cap_id: str, amount: float) -> None:
    """Change a cap; paused work that fits the new cap continues where it stopped."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.spend_caps.update(cap_id, amount=amount))


add_list(quotes, "quotes", ("id", "dataset_id", "basis", "status", "created_at"))
add_show(quotes, "quotes")


@quotes.command("create")
def create_quote(
    context: typer.Context,
    dataset_id: str,
    basis: Annotated[
        str, typer.Option(help="pilot: estimate by answering some rows; history: estimate from earlier batches.")
    ] = "pilot",
    cap: Annotated[
        float | None, typer.Option(help="US dollars; work that uses the quote is paused when it has cost this much.")
    ] = None,
) -> None:
    """Estimate the cost of a batch of the dataset."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.quotes.create(dataset_id=dataset_id, basis=basis, cap=cap))


@quotes.command("cap")
def cap_quote(
    context: typer.Context,
    quote_id: str,
    amount: Annotated[float | None, typer.Argument(help="The new cap in US dollars; default: remove the cap.")] = None,
) -> None:
    """Change or remove the cap of a quote."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.quotes.update(quote_id, cap=amount))


@invoices.command("show")
def show_invoice(context: typer.Context, month: str) -> None:
    """Show the invoice of a month."""
    cli = context_of(context)
    with cli.client() as client:
        cli.output.one(client.invoices.retrieve(month))


@invoices.command("csv")
def csv_invoice(
    context: typer.Context,
    month: str,
    to: Annotated[Path | None, typer.Option(help="File to write; default: invoice-MONTH.csv.")] = None,
) -> None:
    """Write the lines of the invoice of a month to a CSV file."""
    cli = context_of(context)
    with cli.client() as client:
        path = client.invoices.csv(month, to or Path(f"invoice-{month}.csv"))
        cli.output.one({"path": str(path)})
