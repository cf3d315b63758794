from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from control.core.ids import member_id


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """One at a time: each gets an id of its own, whatever the first migration wrote into all of them."""
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
