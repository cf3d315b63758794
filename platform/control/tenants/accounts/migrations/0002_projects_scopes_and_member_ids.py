import django.db.models.deletion
from django.db import migrations, models

import control.tenants.accounts.scopes
import control.core.ids


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.CharField(default=control.core.ids.project_id, editable=False, max_length=40, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=120)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('archived_at', models.DateTimeField(blank=True, null=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='projects', to='accounts.organization')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('organization', 'name'), name='project_name_per_organization')],
            },
        ),
        migrations.AddField(
            model_name='apikey',
            name='deployment_ids',
            field=models.JSONField(blank=True, help_text='The only ones it may use; null: all.', null=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='rotated_from',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.apikey'),
        ),
        migrations.AddField(
            model_name='apikey',
            name='scopes',
            field=models.JSONField(db_default=models.Value(['*'], models.JSONField()), default=control.tenants.accounts.scopes.full_access),
        ),
        migrations.AddField(
            model_name='apikey',
            name='project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='api_keys', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='member',
            name='public_id',
            field=models.CharField(default=control.core.ids.member_id, editable=False, max_length=40, null=True),
        ),
    ]
