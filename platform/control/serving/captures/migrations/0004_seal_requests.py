import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_require_two_factor'),
        ('captures', '0003_stop_at_the_storage_limit'),
    ]

    operations = [
        migrations.CreateModel(
            name='CaptureKey',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='accounts.organization')),
                ('encrypted', models.TextField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.AddField(
            model_name='capture',
            name='redact',
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='Kinds of personal data that are replaced.'),
        ),
        migrations.AddField(
            model_name='capture',
            name='redact_patterns',
            field=models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='Patterns of RE2 that are replaced.'),
        ),
        migrations.AddField(
            model_name='capture',
            name='sample_percent',
            field=models.FloatField(db_default=100.0, default=100.0, help_text='Share of the requests that is kept, drawn at random.'),
        ),
        migrations.AddField(
            model_name='capturedrequest',
            name='sealed',
            field=models.BinaryField(db_default=b'', help_text='The encrypted body of the request, see `sealing`.'),
        ),
        migrations.AlterField(
            model_name='capturedrequest',
            name='body',
            field=models.JSONField(help_text='A body that a process of an earlier release has stored and that is not encrypted yet.', null=True),
        ),
        migrations.AddIndex(
            model_name='capturedrequest',
            index=models.Index(condition=models.Q(('body__isnull', False)), fields=['id'], name='captured_request_plain'),
        ),
    ]
