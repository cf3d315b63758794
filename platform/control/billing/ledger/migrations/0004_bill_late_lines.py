from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_require_two_factor'),
        ('ledger', '0003_index_device_costs'),
    ]

    operations = [
        migrations.AddField(
            model_name='ledgerline',
            name='billed_month',
            field=models.DateField(blank=True, help_text='First day of the month on whose invoice the line is, if it was written after the month of `ended_at` was closed. Null: it is on the invoice of the month of `ended_at`.', null=True),
        ),
    ]
