from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from control.tenants.row_security.scope import Across, across_tenants


def delete_plain(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Deletes what processes of the previous release have stored since the others were encrypted."""
    with across_tenants(Across.COMMAND):
        apps.get_model('captures', 'CapturedRequest').objects.filter(sealed=b'').delete()


class Migration(migrations.Migration):

    dependencies = [
        ('captures', '0005_seal_stored_requests'),
    ]

    operations = [
        migrations.RunPython(delete_plain, migrations.RunPython.noop),
        migrations.RemoveField(
            model_name='capturedrequest',
            name='body',
        ),
        migrations.AlterField(
            model_name='capturedrequest',
            name='sealed',
            field=models.BinaryField(help_text='The encrypted body of the request, see `sealing`.'),
        ),
    ]
