"""`manage.py two_factor_enrol NAME` gives one of the staff a second factor, in place of the one lost."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from control.tenants.accounts.models import User


class Command(BaseCommand):
    help = "Makes a new secret for a user's authenticator app and prints its address, this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.STAFF_TWO_FACTOR:
            raise CommandError("These settings sign staff in by password alone.")
        from control.operations.console.two_factor import second_factor_renew  # its app is not installed otherwise

        user = User.objects.filter(username=options["username"], is_staff=True).first()
        if user is None:
            raise CommandError(f"No member of staff is called {options['username']!r}.")
        self.stdout.write(second_factor_renew(user=user))
