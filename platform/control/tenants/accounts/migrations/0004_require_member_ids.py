from django.db import migrations, models

import control.core.ids


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0003_fill_member_ids'),
    ]

    operations = [
        migrations.AlterField(
            model_name='member',
            name='public_id',
            field=models.CharField(default=control.core.ids.member_id, editable=False, max_length=40, unique=True),
        ),
    ]
