"""Every operation of the API: what it is called, what it takes beside its path, and what it answers.

The keys are the names of view classes, and methods. A route without an entry fails the document's test.
"""

from collections.abc import Mapping

from control.billing.spending.serializers import SpendCapInput, SpendCapUpdateInput
from control.core.api.operation import EVENTS, LINES, PAGING, Operation
from control.data.files.schemas import FileObject
from control.models.adapters.serializers import AdapterInput
from control.models.catalog.serializers import BaseModelInput
from control.operations.openapi import openai_shapes as openai
from control.operations.openapi import own_shapes as own
from control.operations.openapi.deployment_shapes import AdapterObject, DeploymentMetricsPage
from control.operations.openapi.distillation_shapes import DistillationObject
from control.operations.openapi.shapes import Deleted, Page
from control.operations.openapi.spending_shapes import QuoteObject, SpendCapObject
from control.serving.captures.serializers import CaptureInput
from control.serving.deployments.serializers import DeploymentInput, DeploymentUpdateInput
from control.tenants.administration.serializers import (
    ApiKeyInput,
    ApiKeyRotateInput,
    MemberInput,
    MemberUpdateInput,
    ProjectInput,
)
from control.tenants.webhooks.serializers import EndpointInput, EndpointUpdateInput, RotateSecretInput
from control.workflows.batches.serializers import BatchInput
from control.workflows.datasets.serializers import DatasetInput
from control.workflows.distillations.serializers import DistillationInput
from control.workflows.quotes.serializers import QuoteInput, QuoteUpdateInput

BUCKETS = {
    "start_time": "Unix seconds.",
    "end_time": "Unix seconds; now unless given.",
    "bucket_width": "`1m`, `1h` or `1d`.",
    "group_by[]": "What to tell apart; may be given several times.",
    "project_ids[]": "These alone.",
    "api_key_ids[]": "These alone.",
    "models[]": "These alone.",
    "batch": "`true` or `false` alone.",
    "limit": "How many buckets.",
    "page": "`next_page` of the page before.",
}
STRETCHES = ("start_time", "end_time", "bucket_width", "limit", "page")


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("ApiKeysView", "GET"): Operation(id="api_keys.list", response=Page[own.ApiKeyObject], query=PAGING),
    ("ApiKeysView", "POST"): Operation(
        id="api_keys.create", response=own.NewApiKeyObject, status=201, request=ApiKeyInput
    ),
    ("ApiKeyView", "GET"): Operation(id="api_keys.retrieve", response=own.ApiKeyObject),
    ("ApiKeyView", "DELETE"): Operation(id="api_keys.delete", response=Deleted),
    ("ApiKeyRotateView", "POST"): Operation(
        id="api_keys.rotate", response=own.NewApiKeyObject, status=201, request=ApiKeyRotateInput
    ),
    ("MembersView", "GET"): Operation(id="members.list", response=Page[own.MemberObject], query=PAGING),
    ("MembersView", "POST"): Operation(
        id="members.create", response=own.MemberObject, status=201, request=MemberInput
    ),
    ("MemberView", "GET"): Operation(id="members.retrieve", response=own.MemberObject),
    ("MemberView", "PATCH"): Operation(
        id="members.update", response=own.MemberObject, request=MemberUpdateInput
    ),
    ("MemberView", "DELETE"): Operation(id="members.delete", response=Deleted),
    ("ProjectsView", "GET"): Operation(
        id="projects.list", response=Page[own.ProjectObject], query=PAGING
    ),
    ("ProjectsView", "POST"): Operation(
        id="projects.create", response=own.ProjectObject, status=201, request=ProjectInput
    ),
    ("ProjectView", "GET"): Operation(id="projects.retrieve", response=own.ProjectObject),
    ("ProjectView", "PATCH"): Operation(
        id="projects.update", response=own.ProjectObject, request=ProjectInput
    ),
    ("ProjectArchiveView", "POST"): Operation(id="projects.archive", response=own.ProjectObject),
    ("AuditEventsView", "GET"): Operation(
        id="audit_events.list", response=Page[own.AuditEventObject], query=PAGING
    ),
    ("DatasetsView", "GET"): Operation(
        id="datasets.list", response=Page[own.DatasetObject], query=PAGING
    ),
    ("DatasetsView", "POST"): Operation(
        id="datasets.create", response=own.DatasetObject, status=201, request=DatasetInput
    ),
    ("DatasetView", "GET"): Operation(id="datasets.retrieve", response=own.DatasetObject),
    ("DatasetView", "DELETE"): Operation(id="datasets.delete", response=Deleted),
    ("DatasetErrorsView", "GET"): Operation(id="datasets.errors", response=own.DatasetErrorList),
    ("DatasetPreviewView", "GET"): Operation(
        id="datasets.preview", response=own.PreviewRows, query={"limit": "1 to 20 rows."}
    ),
    ("BatchesView", "GET"): Operation(id="batches.list", response=Page[openai.BatchObject], query=PAGING),
    ("BatchesView", "POST"): Operation(
        id="batches.create", response=openai.BatchObject, request=BatchInput
    ),
    ("BatchView", "GET"): Operation(id="batches.retrieve", response=openai.BatchObject),
    ("BatchCancelView", "POST"): Operation(id="batches.cancel", response=openai.BatchObject),
    ("BatchResultsView", "GET"): Operation(
        id="batches.results",
        response=LINES,
        query={"after": "How many rows the caller has already.", "follow": "`true`: until the batch has ended."},
    ),
    ("ModelsView", "GET"): Operation(id="models.list", response=openai.ModelList),
    ("ModelView", "GET"): Operation(id="models.retrieve", response=openai.ModelObject),
    ("BaseModelsView", "GET"): Operation(
        id="base_models.list", response=Page[own.BaseModelObject], query=PAGING
    ),
    ("BaseModelsView", "POST"): Operation(
        id="base_models.create", response=own.BaseModelObject, status=201, request=BaseModelInput
    ),
    ("BaseModelView", "GET"): Operation(id="base_models.retrieve", response=own.BaseModelObject),
    ("BaseModelView", "DELETE"): Operation(id="base_models.delete", response=Deleted),
    ("JobListView", "GET"): Operation(id="jobs.list", response=Page[own.JobObject], query=PAGING),
    ("JobView", "GET"): Operation(id="jobs.retrieve", response=own.JobObject),
    ("JobEventsView", "GET"): Operation(
        id="jobs.events", response=Page[own.JobEventObject], query={"after": "The last event that was seen."}
    ),
    ("JobCancelView", "POST"): Operation(id="jobs.cancel", response=own.JobObject, status=202),
    ("CaptureView", "GET"): Operation(id="deployments.capture.retrieve", response=own.CaptureObject),
    ("CaptureView", "POST"): Operation(
        id="deployments.capture.set", response=own.CaptureObject, request=CaptureInput
    ),
    ("CaptureView", "DELETE"): Operation(id="deployments.capture.end", response=Deleted),
    ("CaptureFileView", "POST"): Operation(
        id="deployments.capture.file", response=FileObject, status=201
    ),
    ("QuotesView", "GET"): Operation(id="quotes.list", response=Page[QuoteObject], query=PAGING),
    ("QuotesView", "POST"): Operation(
        id="quotes.create", response=QuoteObject, status=201, request=QuoteInput
    ),
    ("QuoteView", "GET"): Operation(id="quotes.retrieve", response=QuoteObject),
    ("QuoteView", "PATCH"): Operation(id="quotes.update", response=QuoteObject, request=QuoteUpdateInput),
    ("AdaptersView", "GET"): Operation(id="adapters.list", response=Page[AdapterObject], query=PAGING),
    ("AdaptersView", "POST"): Operation(
        id="adapters.create", response=AdapterObject, status=201, request=AdapterInput
    ),
    ("AdapterView", "GET"): Operation(id="adapters.retrieve", response=AdapterObject),
    ("AdapterView", "DELETE"): Operation(id="adapters.delete", response=Deleted),
    ("DistillationsView", "GET"): Operation(
        id="distillations.list", response=Page[DistillationObject], query=PAGING
    ),
    ("DistillationsView", "POST"): Operation(
        id="distillations.create", response=DistillationObject, status=201, request=DistillationInput
    ),
    ("DistillationView", "GET"): Operation(
        id="distillations.retrieve", response=DistillationObject
    ),
    ("DistillationCancelView", "POST"): Operation(
        id="distillations.cancel", response=DistillationObject
    ),
    ("SpendCapsView", "GET"): Operation(
        id="spend_caps.list", response=Page[SpendCapObject], query=PAGING
    ),
    ("SpendCapsView", "POST"): Operation(
        id="spend_caps.create", response=SpendCapObject, status=201, request=SpendCapInput
    ),
    ("SpendCapView", "GET"): Operation(id="spend_caps.retrieve", response=SpendCapObject),
    ("SpendCapView", "PATCH"): Operation(
        id="spend_caps.update", response=SpendCapObject, request=SpendCapUpdateInput
    ),
    ("SpendCapView", "DELETE"): Operation(id="spend_caps.delete", response=Deleted),
    ("DeploymentsView", "GET"): Operation(
        id="deployments.list", response=Page[own.DeploymentObject], query=PAGING
    ),
    ("DeploymentsView", "POST"): Operation(
        id="deployments.create", response=own.DeploymentObject, status=201, request=DeploymentInput
    ),
    ("DeploymentView", "GET"): Operation(id="deployments.retrieve", response=own.DeploymentObject),
    ("DeploymentView", "PATCH"): Operation(
        id="deployments.update", response=own.DeploymentObject, request=DeploymentUpdateInput
    ),
    ("DeploymentView", "DELETE"): Operation(id="deployments.delete", response=Deleted),
    ("DeploymentEventsView", "GET"): Operation(
        id="deployments.events", response=Page[own.EventObject], query=PAGING
    ),
    ("DeploymentMetricsView", "GET"): Operation(
        id="deployments.metrics",
        response=DeploymentMetricsPage,
        query={name: text for name, text in BUCKETS.items() if name in STRETCHES},
    ),
    ("DeploymentStartView", "POST"): Operation(
        id="deployments.start", response=own.DeploymentObject, status=202
    ),
    ("DeploymentStopView", "POST"): Operation(
        id="deployments.stop", response=own.DeploymentObject, status=202
    ),
    ("EventsView", "GET"): Operation(
        id="events.list",
        response=Page[own.EventObject],
        also=EVENTS,
        query={**PAGING, "types": "Names or patterns, with commas.", "object_id": "Of this object alone."},
    ),
    ("EventView", "GET"): Operation(id="events.retrieve", response=own.EventObject),
    ("EndpointsView", "GET"): Operation(
        id="webhook_endpoints.list", response=Page[own.WebhookEndpointObject], query=PAGING
    ),
    ("EndpointsView", "POST"): Operation(
        id="webhook_endpoints.create", response=own.WebhookEndpointWithSecret, status=201, request=EndpointInput
    ),
    ("EndpointView", "GET"): Operation(
        id="webhook_endpoints.retrieve", response=own.WebhookEndpointObject
    ),
    ("EndpointView", "PATCH"): Operation(
        id="webhook_endpoints.update", response=own.WebhookEndpointObject, request=EndpointUpdateInput
    ),
    ("EndpointView", "DELETE"): Operation(id="webhook_endpoints.delete", response=Deleted),
    ("EndpointRotateView", "POST"): Operation(
        id="webhook_endpoints.rotate_secret", response=own.WebhookEndpointWithSecret, request=RotateSecretInput
    ),
    ("EndpointTestView", "POST"): Operation(
        id="webhook_endpoints.test", response=own.WebhookDeliveryObject, status=202
    ),
    ("DeliveriesView", "GET"): Operation(
        id="webhook_endpoints.deliveries.list",
        response=Page[own.WebhookDeliveryObject],
        query={**PAGING, "status": "`pending`, `succeeded` or `failed` alone."},
    ),
    ("DeliveryView", "GET"): Operation(
        id="webhook_endpoints.deliveries.retrieve", response=own.WebhookDeliveryObject
    ),
    ("DeliveryReplayView", "POST"): Operation(
        id="webhook_endpoints.deliveries.replay", response=own.WebhookDeliveryObject, status=202
    ),
    ("UsageView", "GET"): Operation(
        id="usage.retrieve",
        response=own.UsageTotal,
        query={"start_time": "Unix seconds; the month's first unless given.", "end_time": "Unix seconds; or now."},
    ),
    ("CompletionsUsageView", "GET"): Operation(
        id="organization.usage.completions", response=openai.UsagePage, query=BUCKETS
    ),
    ("CostsView", "GET"): Operation(id="organization.costs", response=openai.CostPage, query=BUCKETS),
    ("chat_completions", "POST"): Operation(
        id="chat.completions.create", response=own.Completion, also=EVENTS
    ),
    ("completions", "POST"): Operation(id="completions.create", response=own.Completion, also=EVENTS),
}
