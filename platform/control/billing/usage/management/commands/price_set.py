"""`manage.py price_set MODEL INPUT OUTPUT` sets the price of a million tokens of a model from now on."""

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.services import price_set

NANOUSD_PER_USD_PER_MILLION = 1000  # one dollar per million tokens is 1000 billionths of a dollar per token


class Command(BaseCommand):
    help = 'Sets the price of a model; "" is the price of all models that have no price of their own.'

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model")
        parser.add_argument("input", type=Decimal, help="US dollars per million input tokens.")
        parser.add_argument("output", type=Decimal, help="US dollars per million output tokens.")
        parser.add_argument("--batch-percent", type=int, default=50, help="Price of a batch's tokens in per cent.")

    def handle(self, *, model: str, input: Decimal, output: Decimal, batch_percent: int, **_: Any) -> None:  # noqa: A002
        nano = [price * NANOUSD_PER_USD_PER_MILLION for price in (input, output)]
        if any(price < 0 or price != int(price) for price in nano):
            raise CommandError("a price must not be negative and can have at most three decimals")
        if not 0 <= batch_percent <= 100:
            raise CommandError("--batch-percent must be from 0 to 100")
        price_set(model=model, input_nanousd=int(nano[0]), output_nanousd=int(nano[1]), batch_percent=batch_percent)
        self.stdout.write(f"{model or 'all other models'}: {input} in, {output} out, batches {batch_percent} %")
