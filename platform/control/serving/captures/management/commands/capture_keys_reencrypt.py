"""`manage.py capture_keys_reencrypt` encrypts the keys of captured requests with a new SECRET_KEY.

Run it after a change of SECRET_KEY, before you remove the old one.
"""

from typing import Any

from django.core.management.base import BaseCommand

from control.serving.captures.sealing import capture_keys_reencrypt
from control.tenants.row_security.scope import Across, across_tenants


class Command(BaseCommand):
    help = "Encrypts the keys of captured requests with the current secret key. It can be repeated and run at any time."

    def handle(self, **options: Any) -> None:
        with across_tenants(Across.COMMAND):
            self.stdout.write(f"{capture_keys_reencrypt()} keys are encrypted with the current secret key.")
