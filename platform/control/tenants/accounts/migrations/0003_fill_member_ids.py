from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from control.core.ids import member_id


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Updates rows one at a time, so that each gets its own id: the first migration gave all of them the same one."""
    members = apps.get_model("accounts", "Member").objects
    for key in members.values_list("pk", flat=True):
        members.filter(pk=key).update(public_id=member_id())


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_projects_scopes_and_member_ids'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
