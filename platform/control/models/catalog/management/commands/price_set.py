"""`manage.py price_set MODEL INPUT OUTPUT` sets the price of a million tokens of a base model from now on."""

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.selectors import prices_unassigned
from control.billing.usage.services import price_set
from control.models.catalog.models import BaseModel
from control.tenants.row_security.scope import Across, across_tenants

NANOUSD_PER_USD_PER_MILLION = 1000  # one dollar per million tokens is 1000 billionths of a dollar per token


class Command(BaseCommand):
    help = 'Sets the price of a base model; "" is the price of all models that have no price of their own.'

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Id of a base model, or name of a base model that all organizations share.")
        parser.add_argument("input", type=Decimal, help="US dollars per million input tokens.")
        parser.add_argument("output", type=Decimal, help="US dollars per million output tokens.")
        parser.add_argument("--batch-percent", type=int, default=50, help="Price of a batch's tokens, in per cent.")

    def handle(self, *, model: str, input: Decimal, output: Decimal, batch_percent: int, **_: Any) -> None:  # noqa: A002
        nano = [price * NANOUSD_PER_USD_PER_MILLION for price in (input, output)]
        if any(price < 0 or price != int(price) for price in nano):
            raise CommandError(f"prices must be at least 0 with at most three decimals, got {input} and {output}")
        if not 0 <= batch_percent <= 100:
            raise CommandError(f"--batch-percent must be from 0 to 100, got {batch_percent}")
        with across_tenants(Across.COMMAND):
            base_model_id, name = _resolve(model)
            price_set(
                base_model_id=base_model_id,
                model=name,
                input_nanousd=int(nano[0]),
                output_nanousd=int(nano[1]),
                batch_percent=batch_percent,
            )
            unassigned = ", ".join(prices_unassigned().values_list("model", flat=True))
        self.stdout.write(f"{name or 'all other models'}: {input} in, {output} out, batches {batch_percent} %")
        if unassigned:
            self.stderr.write(f"Prices of earlier releases that apply to no base model: {unassigned}")


def _resolve(model: str) -> tuple[str, str]:
    """Returns id and name of the base model; two empty texts stand for all other models."""
    if not model:
        return "", ""
    row = BaseModel.objects.filter(pk=model).first() or BaseModel.objects.filter(organization=None, name=model).first()
    if row is None:
        raise CommandError(f"{model!r} is neither the id of a base model nor the name of a shared one")
    return row.pk, row.name
