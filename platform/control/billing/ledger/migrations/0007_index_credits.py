from django.db import migrations, models

from control.core.concurrent_indexes import AddIndexConcurrently


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('ledger', '0006_credits'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='ledgerline',
            index=models.Index(condition=models.Q(('credit_reason__isnull', False)), fields=['organization', 'ended_at'], name='ledger_credits'),
        ),
    ]
