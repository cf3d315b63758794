"""Numbers the versions of an organization's objects that have the same name."""

from typing import Any

from django.db.models import Max, QuerySet

from control.tenants.accounts.models import Organization


def next_version(organization: Organization, versions: QuerySet[Any]) -> int:
    """Returns the highest version plus one. Args: versions: all rows with this name; they have a column `version`.

    Locks the organization's row until the end of the transaction, so that two calls do not choose one version. With
    `no_key`, inserts of rows that refer to the organization need not wait.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    return (versions.aggregate(last=Max("version"))["last"] or 0) + 1
