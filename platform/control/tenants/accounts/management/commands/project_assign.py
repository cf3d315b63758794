"""`manage.py project_assign PROJECT OBJECT...` moves objects of the project's organization into the project."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from control.tenants.accounts.models import Project
from control.tenants.accounts.projects import NoSuchObject, project_assign
from control.tenants.row_security.scope import Across, across_tenants


class Command(BaseCommand):
    help = "Moves objects of the project's organization into the project, so that its keys see them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("project", help="Id of the project.")
        parser.add_argument("object", nargs="+", help="Id of a deployment, file, speculator or other object.")

    def handle(self, *, project: str, object: list[str], **_: Any) -> None:  # noqa: A002
        with across_tenants(Across.COMMAND):
            row = Project.objects.filter(pk=project).first()
            if row is None:
                raise CommandError(f"there is no project {project!r}")
            try:
                project_assign(project=row, object_ids=object)
            except NoSuchObject as error:
                raise CommandError(str(error)) from error
        self.stdout.write(f"{len(object)} objects belong to the project {row.name!r}.")
