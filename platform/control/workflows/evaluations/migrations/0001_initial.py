import control.core.ids
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('catalog', '0001_initial'),
        ('files', '0001_initial'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Evaluation',
            fields=[
                ('id', models.CharField(default=control.core.ids.evaluation_id, editable=False, max_length=40, primary_key=True, serialize=False)),
                ('settings', models.JSONField(default=dict, help_text='concurrencies, max_tokens, repeats, price_per_gpu_hour')),
                ('certificate', models.JSONField(blank=True, help_text='Signed; set once.', null=True)),
                ('plots_prefix', models.CharField(blank=True, help_text='Folder of report.png and report.svg.', max_length=400)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='evaluation', to='jobs.job')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='evaluations', to='accounts.organization')),
                ('prompts_file', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='files.file')),
                ('speculator', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='evaluations', to='catalog.speculator')),
            ],
            options={
                'indexes': [models.Index(fields=['organization', '-id'], name='evaluation_page')],
            },
        ),
    ]
