"""`manage.py price_remove MODEL` removes the price of a base model.

MODEL is the id of the base model, or the name that is stored with the price.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.services import price_remove


class Command(BaseCommand):
    help = 'Removes the price of a base model; "" is the price of all models that have no price of their own.'

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Id of the base model, or the name that `price_set` stored with the price.")

    def handle(self, *, model: str, **_: Any) -> None:
        if not price_remove(model=model):
            raise CommandError(f"there is no price of {model!r}")
        self.stdout.write(f"{model or 'all other models'}: the price is removed")
