"""`manage.py webhook_secrets_reencrypt`: the second step of changing the secret key, after which the old one may go."""

from typing import Any

from django.core.management.base import BaseCommand

from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.services import webhook_secrets_reencrypt


class Command(BaseCommand):
    help = "Writes the secrets of webhooks with the secret key of now. May be repeated, and run beside everything else."

    def handle(self, **options: Any) -> None:
        with across_tenants(Across.COMMAND):
            self.stdout.write(f"{webhook_secrets_reencrypt()} secrets are written with the secret key of now.")
