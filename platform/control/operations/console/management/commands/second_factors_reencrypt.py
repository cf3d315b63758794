"""`manage.py second_factors_reencrypt` encrypts members' second factors with a new SECRET_KEY.

Run it after a change of SECRET_KEY, before you remove the old one.
"""

from typing import Any

from django.core.management.base import BaseCommand

from control.operations.sign_in.services import second_factors_reencrypt


class Command(BaseCommand):
    help = "Encrypts members' second factors with the current secret key. It can be repeated and run at any time."

    def handle(self, **options: Any) -> None:
        self.stdout.write(f"{second_factors_reencrypt()} secrets are encrypted with the current secret key.")
