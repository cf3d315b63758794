"""`manage.py base_model_register NAME DIR`: registers a folder of safetensors as a model that customers may use."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.core.api.errors import ApiError
from control.models.catalog.services import base_model_register
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import Across, across_tenants


class Command(BaseCommand):
    help = "Registers a local folder of safetensors as a model, for all organizations or for one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--organization", help="The only organization that may use the model. Default: all may.")

    def handle(self, **options: Any) -> None:
        with across_tenants(Across.COMMAND):
            self._register(options)

    def _register(self, options: dict[str, Any]) -> None:
        organization = None
        if options["organization"] is not None:
            organization = Organization.objects.filter(name=options["organization"]).first()
            if organization is None:
                raise CommandError(f"there is no organization named {options['organization']!r}")
        try:
            model = base_model_register(name=options["name"], path=options["folder"], organization=organization)
        except ApiError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{model.name}: {model.model_type}, revision {model.revision[:12]}")
