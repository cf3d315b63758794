"""`manage.py device_price_remove KIND` removes the price: the device time of this kind is free from now on."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.device_time import device_price_remove


class Command(BaseCommand):
    help = "Removes the price of a kind of device."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", help="cuda or cpu")

    def handle(self, *, kind: str, **_: Any) -> None:
        if not device_price_remove(device_kind=kind):
            raise CommandError(f"there is no price of {kind!r}")
        self.stdout.write(f"{kind}: the price is removed")
