"""`manage.py webhook_secrets_reencrypt`: run it after a change of SECRET_KEY, before you remove the old key."""

from typing import Any

from django.core.management.base import BaseCommand

from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.services import webhook_secrets_reencrypt


class Command(BaseCommand):
    help = "Encrypts the secrets of webhooks with the current secret key. It can be repeated and run at any time."

    def handle(self, **options: Any) -> None:
        with across_tenants(Across.COMMAND):
            self.stdout.write(f"{webhook_secrets_reencrypt()} secrets are encrypted with the current secret key.")
