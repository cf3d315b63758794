from collections import defaultdict
from itertools import islice
from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, QuerySet, Subquery

from control.tenants.row_security.scope import Across, across_tenants

_CHUNK = 500
_CREATED_BY_KEYS = (
    ('files', 'File'),
    ('uploads', 'Upload'),
    ('catalog', 'BaseModel'),
    ('catalog', 'Speculator'),
    ('adapters', 'Adapter'),
    ('webhooks', 'WebhookEndpoint'),
    ('datasets', 'Dataset'),
    ('quotes', 'Quote'),
)
_CREATIONS = ('.create', '.import', 'capture.export')  # ends of the actions in the audit log
_CHARGED_TO_KEYS = (('jobs', 'Job'), ('pipelines', 'Pipeline'), ('deployments', 'Deployment'))
# (model, its row that belongs to the project of another row, the other model, the column that joins them)
_PARTS = (
    (('batches', 'Batch'), 'job_id', ('jobs', 'Job'), 'pk'),
    (('evaluations', 'Evaluation'), 'job_id', ('jobs', 'Job'), 'pk'),
    (('distillations', 'Distillation'), 'batch_id', ('batches', 'Batch'), 'pk'),
    (('fine_tuning', 'FineTuningJob'), 'pipeline_id', ('pipelines', 'Pipeline'), 'pk'),
    (('catalog', 'Speculator'), 'pk', ('pipelines', 'Pipeline'), 'speculator_id'),
    (('files', 'File'), 'pk', ('batches', 'Batch'), 'output_file_id'),
    (('files', 'File'), 'pk', ('batches', 'Batch'), 'error_file_id'),
    (('files', 'File'), 'pk', ('uploads', 'Upload'), 'file_id'),
)


def fill(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Assigns the objects that keys of projects have created, and the objects that were made for these.

    The audit log and the attribution of usage name the keys. The other rows keep no project, as do those that
    processes of the previous release write after this migration.
    """
    with across_tenants(Across.COMMAND):
        _fill_created(apps)
        charged = apps.get_model('usage', 'Attribution').objects.exclude(project_id='')
        for model in _CHARGED_TO_KEYS:
            _fill_from(apps, model, charged.filter(job_id=OuterRef('pk')))
        for model, column, other, joined in _PARTS:
            others = apps.get_model(*other).objects.exclude(project=None)
            _fill_from(apps, model, others.filter(**{joined: OuterRef(column)}))


def _fill_created(apps: Apps) -> None:
    keys = apps.get_model('accounts', 'ApiKey').objects.exclude(project=None)
    projects = dict(keys.values_list('pk', 'project_id'))
    models = {name.lower(): apps.get_model(app, name) for app, name in _CREATED_BY_KEYS}
    events = apps.get_model('audit', 'AuditEvent').objects.filter(
        actor_type='api_key', actor_id__in=list(projects), object_type__in=list(models)
    )
    for creation in _CREATIONS:
        rows = events.filter(action__endswith=creation).order_by()
        created = rows.values_list('object_type', 'object_id', 'actor_id').iterator(chunk_size=_CHUNK)
        while chunk := list(islice(created, _CHUNK)):
            ids = defaultdict(list)
            for object_type, object_id, key_id in chunk:
                ids[object_type, projects[key_id]].append(object_id)
            for (object_type, project_id), of_project in ids.items():
                models[object_type].objects.filter(pk__in=of_project).update(project_id=project_id)


def _fill_from(apps: Apps, model: tuple[str, str], others: QuerySet[Any]) -> None:
    rows = apps.get_model(*model).objects.filter(project=None)
    rows = rows.annotate(found=Subquery(others.values('project_id')[:1])).exclude(found=None).order_by()
    for pk, project_id in list(rows.values_list('pk', 'found')):
        apps.get_model(*model).objects.filter(pk=pk).update(project_id=project_id)


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0006_bind_keys_to_members'),
        ('audit', '0003_describe_fields'),
        ('adapters', '0003_belong_to_projects'),
        ('batches', '0005_belong_to_projects'),
        ('catalog', '0006_belong_to_projects'),
        ('datasets', '0003_belong_to_projects'),
        ('deployments', '0008_belong_to_projects'),
        ('distillations', '0002_belong_to_projects'),
        ('evaluations', '0003_belong_to_projects'),
        ('files', '0003_belong_to_projects'),
        ('fine_tuning', '0003_belong_to_projects'),
        ('jobs', '0007_belong_to_projects'),
        ('pipelines', '0005_belong_to_projects'),
        ('quotes', '0004_belong_to_projects'),
        ('usage', '0003_fill_monthly_spend'),
        ('uploads', '0003_belong_to_projects'),
        ('webhooks', '0004_belong_to_projects'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
