"""`manage.py price_set MODEL INPUT OUTPUT`: what a million tokens cost from now on."""

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.services import price_set

NANO_OF_A_MILLIONTH = 1000  # nano-dollars a token for each dollar per million tokens


class Command(BaseCommand):
    help = 'Sets the price of a model; "" is the price of all models without one of their own.'

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model")
        parser.add_argument("input", type=Decimal, help="US dollars per million tokens that go in.")
        parser.add_argument("output", type=Decimal, help="US dollars per million tokens that come out.")
        parser.add_argument("--batch-percent", type=int, default=50, help="What tokens of a batch cost of that.")

    def handle(self, *, model: str, input: Decimal, output: Decimal, batch_percent: int, **_: Any) -> None:  # noqa: A002
        nano = [price * NANO_OF_A_MILLIONTH for price in (input, output)]
        if any(price < 0 or price != int(price) for price in nano):
            raise CommandError("a price is not negative and has at most three decimals")
        if not 0 <= batch_percent <= 100:
            raise CommandError("--batch-percent is from 0 to 100")
        price_set(model=model, input_nanousd=int(nano[0]), output_nanousd=int(nano[1]), batch_percent=batch_percent)
        self.stdout.write(f"{model or 'all other models'}: {input} in, {output} out, batches {batch_percent} %")
