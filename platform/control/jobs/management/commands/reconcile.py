"""`manage.py reconcile`: repeats the wake-ups of due jobs once. Every worker does so by itself, again and again."""

from typing import Any

from django.core.management.base import BaseCommand

from control.jobs.services import reconcile


class Command(BaseCommand):
    help = "Sends a wake-up for every due job."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{reconcile()} jobs due")
