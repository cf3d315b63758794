"""`manage.py two_factor_enrol NAME` creates a member of staff's second factor, or replaces a lost one."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from control.tenants.accounts.models import User


class Command(BaseCommand):
    help = "Creates a new secret for a user's authenticator app and prints its URL, which is not shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.STAFF_TWO_FACTOR:
            raise CommandError("Staff sign in with a password only, because STAFF_TWO_FACTOR is not set.")
        # imported here, because the app with the model is installed only with STAFF_TWO_FACTOR
        from control.operations.console.two_factor import second_factor_renew

        user = User.objects.filter(username=options["username"], is_staff=True).first()
        if user is None:
            raise CommandError(f"There is no member of staff named {options['username']!r}.")
        self.stdout.write(second_factor_renew(user=user))
