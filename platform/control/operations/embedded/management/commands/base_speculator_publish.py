"""`manage.py base_speculator_publish NAME`: offers a speculator to all organizations, for a model that they share."""

import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.core.api.errors import ApiError
from control.models.base_speculators.publishing import base_speculator_import, base_speculator_publish
from control.models.catalog.models import BaseModel, BaseSpeculator, Speculator
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.pipelines.schemas import NAME_PATTERN
from workers.exports.formats import FORMATS


class Command(BaseCommand):
    help = "Publishes a speculator of an organization, or one in a local folder, to all organizations."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="Name of the base speculator. Versions are counted for each model.")
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--speculator", help="Id of an organization's speculator. The original stays as it is.")
        source.add_argument("--folder", type=Path, help="A folder with the speculator's files; needs --model.")
        parser.add_argument("--model", help="Name of the shared model that the speculator in the folder is for.")
        parser.add_argument("--format", choices=FORMATS, help="Format of the folder. Default: that of our training.")
        parser.add_argument("--description", default="", help="A description for the organizations.")

    def handle(self, **options: Any) -> None:
        if not re.fullmatch(NAME_PATTERN, options["name"]):
            raise CommandError("a name has 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or digit")
        with across_tenants(Across.COMMAND):
            try:
                made = self._publish(options)
            except ApiError as error:
                raise CommandError(error.message) from error
        self.stdout.write(f"{made.pk}: {made} for {made.base_model.name}")

    def _publish(self, options: dict[str, Any]) -> BaseSpeculator:
        texts = {"name": options["name"], "description": options["description"]}
        if options["speculator"] is not None:
            if options["model"] is not None or options["format"] is not None:
                raise CommandError("--model and --format are only for --folder")
            speculator = Speculator.objects.filter(pk=options["speculator"]).select_related("base_model").first()
            if speculator is None:
                raise CommandError(f"there is no speculator {options['speculator']!r}")
            return base_speculator_publish(speculator=speculator, **texts)
        model = BaseModel.objects.filter(organization=None, name=options["model"]).first()
        if model is None:
            raise CommandError(f"--model must name a model that all organizations share, got {options['model']!r}")
        return base_speculator_import(folder=options["folder"], form=options["format"], base_model=model, **texts)
