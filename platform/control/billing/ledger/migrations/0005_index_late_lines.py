from django.db import migrations, models

from control.core.concurrent_indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('ledger', '0004_bill_late_lines'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='ledgerline',
            index=models.Index(condition=models.Q(('billed_month__isnull', False)), fields=['organization', 'billed_month'], name='ledger_billed_later'),
        ),
    ]
