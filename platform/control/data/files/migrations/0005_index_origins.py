from django.db import migrations, models

from control.core.concurrent_indexes import AddIndexConcurrently


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ('files', '0004_record_origins'),
    ]

    operations = [
        AddIndexConcurrently(
            model_name='file',
            index=models.Index(condition=models.Q(('made_from', ''), _negated=True), fields=['made_from'], name='file_made_from'),
        ),
    ]
