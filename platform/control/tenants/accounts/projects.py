"""Decides which objects of an organization a caller sees.

An object belongs to the project of the key that created it, or to no project. A key of a project sees the objects of
its project only. A key without a project, and an operator, see all objects of the organization.
"""

from collections.abc import Sequence

from django.apps import apps
from django.db import models, transaction
from django.db.models import Q

from control.tenants.accounts.models import Organization, Project
from control.tenants.row_security.scope import current_project


class NoSuchObject(Exception):
    """The organization has no object with this id that can belong to a project."""


class ProjectObject(models.Model):
    """The base class of tables whose rows belong to an organization and perhaps to one of its projects."""

    project = models.ForeignKey(
        Project,
        on_delete=models.RESTRICT,
        related_name="+",
        null=True,
        blank=True,
        editable=False,
        default=current_project,
        help_text="Null: only keys of the whole organization see the row.",
    )

    class Meta:
        abstract = True


def visible(organization: Organization, *, also_of_no_project: bool = False) -> Q:
    """Returns a condition that matches the rows that the caller sees. Every selector for customers filters by it.

    Args: also_of_no_project: whether keys of projects also see the rows that belong to no project.
    """
    project_id = current_project()
    if project_id is None:
        return Q(organization=organization)
    in_project = Q(project_id=project_id)
    if also_of_no_project:
        in_project |= Q(project_id=None)
    return Q(organization=organization) & in_project


@transaction.atomic
def project_assign(*, project: Project, object_ids: Sequence[str]) -> None:
    """Moves objects of the project's organization into the project. Raises: NoSuchObject: nothing has changed."""
    tables: list[type[models.Model]] = [model for model in apps.get_models() if issubclass(model, ProjectObject)]
    with_public_id = [table for table in tables if isinstance(table._meta.pk, models.CharField)]
    for object_id in object_ids:
        if not any(
            table._default_manager.filter(pk=object_id, organization=project.organization).update(project=project)
            for table in with_public_id
        ):
            raise NoSuchObject(f"the organization of {project.pk} has no object {object_id!r}")
