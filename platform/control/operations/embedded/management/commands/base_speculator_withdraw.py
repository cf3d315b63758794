"""`manage.py base_speculator_withdraw ID`: withdraws a base speculator. Organizations that already use it keep it."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.core.api.errors import ApiError
from control.models.base_speculators.publishing import base_speculator_withdraw
from control.models.base_speculators.selectors import base_speculator_get
from control.tenants.row_security.scope import Across, across_tenants


class Command(BaseCommand):
    help = "Withdraws a base speculator. Organizations that already use it keep it, and its files stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("base_speculator", metavar="ID")

    def handle(self, *, base_speculator: str, **_: Any) -> None:
        with across_tenants(Across.COMMAND):
            try:
                found = base_speculator_get(base_speculator)
            except ApiError as error:
                raise CommandError(error.message) from error
            base_speculator_withdraw(base_speculator=found)
        self.stdout.write(f"{found} is withdrawn")
