"""`manage.py device_price_set KIND USD` sets the price of an hour of a device from now on."""

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.billing.usage.device_time import device_price_set

DEVICE_KINDS = ("cuda", "cpu")
NANO = 10**9


class Command(BaseCommand):
    help = "Sets the price of the device time of batches, training, evaluations and endpoints."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=DEVICE_KINDS)
        parser.add_argument("usd", type=Decimal, help="US dollars per hour of one device.")

    def handle(self, *, kind: str, usd: Decimal, **_: Any) -> None:
        if not usd.is_finite() or not 0 <= usd <= 1_000_000 or usd * NANO != int(usd * NANO):
            raise CommandError("a price must be from 0 to 1,000,000 and can have at most nine decimals")
        device_price_set(device_kind=kind, hour_nanousd=int(usd * NANO))
        self.stdout.write(f"{kind}: {usd} per hour")
