import datetime as dt

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import F, Sum
from django.db.models.functions import TruncMonth

from control.tenants.row_security.scope import Across, across_tenants


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Sums the usage so far, in total and by project.

    Usage that processes of the previous release write after this migration is not in the counters, so until those
    processes have been replaced, caps see too little of it.
    """
    counters = apps.get_model("usage", "MonthlySpend").objects
    with across_tenants(Across.COMMAND):
        records = apps.get_model("usage", "UsageRecord").objects.annotate(month=TruncMonth("minute", tzinfo=dt.UTC))
        cost = Sum(F("input_nanousd") + F("output_nanousd"))
        for by in (("organization_id", "month"), ("organization_id", "month", "project_id")):
            rows = records.exclude(project_id="") if "project_id" in by else records
            for row in rows.order_by().values(*by).annotate(nanousd=cost):
                counters.create(**{**row, "month": row["month"].date()})


class Migration(migrations.Migration):

    dependencies = [
        ('usage', '0002_monthly_spend'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
