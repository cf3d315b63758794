"""`manage.py second_factor_remove EMAIL` removes the second factor of a member who has lost the app and the codes."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from control.operations.sign_in.services import second_factor_remove
from control.tenants.accounts.models import User


class Command(BaseCommand):
    help = "Removes a member's authenticator app and recovery codes, after you have verified who is asking."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["email"].lower(), is_staff=False).first()
        if user is None or not second_factor_remove(user=user):
            raise CommandError(f"{options['email']!r} has no second factor.")
        self.stdout.write("The second factor is removed.")
