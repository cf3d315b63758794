"""Decides which objects of an organization a caller sees.

An object belongs to the project of the key that created it, or to no project. A key of a project sees the objects of
its project only. A key without a project, and an operator, see all objects of the organization.
"""

from django.db import models
from django.db.models import Q

from control.tenants.accounts.models import Organization, Project
from control.tenants.row_security.scope import current_project


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
    """Matches the rows that the caller sees. Every selector for customers filters by it.

    Args: also_of_no_project: whether all projects share the rows that belong to no project.
    """
    project_id = current_project()
    if project_id is None:
        return Q(organization=organization)
    in_project = Q(project_id=project_id)
    if also_of_no_project:
        in_project |= Q(project_id=None)
    return Q(organization=organization) & in_project
