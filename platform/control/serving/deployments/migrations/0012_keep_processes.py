"""Gives each deployment that has a process a replica with the facts of this process, which continues to run.

The columns stay in the database for the previous release; only the models no longer have them.
"""

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from control.tenants.row_security.scope import Across, across_tenants

MOVED = ('pid', 'process_started', 'port', 'token', 'device', 'crashes', 'not_before', 'metered_until')
STATES = {'stopping': 'draining', 'ready': 'ready', 'degraded': 'degraded'}


def keep_processes(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    replicas = apps.get_model('deployments', 'Replica').objects
    with across_tenants(Across.COMMAND):
        for row in apps.get_model('deployments', 'Deployment').objects.all():
            values = {name: getattr(row, name) for name in MOVED}
            if values['pid'] is None:
                continue
            replicas.create(
                deployment=row,
                number=0,
                state=STATES.get(row.state, 'provisioning'),
                generation=row.observed_generation,
                host=settings.SLIPSTREAM.engine_host,
                healthy_at=row.healthy_at,
                **values,
            )


class Migration(migrations.Migration):

    dependencies = [
        ('deployments', '0011_replicas'),
    ]

    operations = [
        migrations.RunPython(keep_processes, migrations.RunPython.noop),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField(model_name='deployment', name=name) for name in MOVED]
        ),
    ]
