"""Encrypts the requests that are stored as plain text."""

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from control.serving.captures.sealing import Sealer, new_key
from control.tenants.row_security.scope import Across, across_tenants


def seal(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    requests: Any = apps.get_model('captures', 'CapturedRequest').objects
    keys = apps.get_model('captures', 'CaptureKey').objects
    with across_tenants(Across.COMMAND):
        for organization_id in requests.filter(body__isnull=False).values_list('organization_id', flat=True).distinct():
            key, _ = keys.get_or_create(organization_id=organization_id, defaults={'encrypted': new_key()})
            sealer = Sealer(key.encrypted)
            for row in requests.filter(organization_id=organization_id, body__isnull=False).iterator(chunk_size=100):
                sealed = sealer.seal(row.body, deployment_id=row.deployment_id)
                requests.filter(pk=row.pk).update(sealed=sealed, body=None)


class Migration(migrations.Migration):

    dependencies = [
        ('captures', '0004_seal_requests'),
    ]

    operations = [
        migrations.RunPython(seal, migrations.RunPython.noop),
    ]
