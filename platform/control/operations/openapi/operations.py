"""Every operation of the API: what it is called, what it takes beside its path, and what it answers.

The keys are views, below `control.`, and methods. A route without an entry fails the document's test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.billing.spending.serializers import SpendCapInput, SpendCapUpdateInput
from control.data.uploads.serializers import CompleteInput, UploadInput
from control.models.adapters.serializers import AdapterInput
from control.models.catalog.serializers import BaseModelInput
from control.operations.openapi import openai_shapes as openai
from control.operations.openapi import own_shapes as own
from control.operations.openapi.deployment_shapes import AdapterObject, DeploymentMetricsPage, RolloutObject
from control.operations.openapi.distillation_shapes import DistillationObject
from control.operations.openapi.forms import FileForm, PartForm
from control.operations.openapi.shapes import Deleted, Page
from control.operations.openapi.spending_shapes import QuoteObject, SpendCapObject
from control.serving.captures.serializers import CaptureInput
from control.serving.deployments.serializers import DeploymentInput, DeploymentUpdateInput
from control.serving.rollouts.serializers import RolloutInput
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
from control.workflows.evaluations.requests import EvaluationRequest
from control.workflows.fine_tuning.requests import JobInput
from control.workflows.pipelines.requests import PipelineRequest
from control.workflows.quotes.serializers import QuoteInput, QuoteUpdateInput
from control.workflows.speculators.serializers import ExportInput, ImportInput

BINARY = "application/octet-stream"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
PNG, SVG = "image/png", "image/svg+xml"

PAGING = {
    "after": "The last id of the page before.",
    "limit": "1 to 100.",
    "order": "`desc`, the newest first, or `asc`.",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    id: str
    answer: Any  # a shape, or the media type of what is not JSON
    status: int = 200
    body: Any = None  # None: it takes none
    query: Mapping[str, str] | None = None
    also: str | None = None  # a second media type of the answer


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("accounts.views.ApiKeysView", "GET"): Operation(id="api_keys.list", answer=Page[own.ApiKeyObject], query=PAGING),
    ("accounts.views.ApiKeysView", "POST"): Operation(
        id="api_keys.create", answer=own.NewApiKeyObject, status=201, body=ApiKeyInput
    ),
    ("accounts.views.ApiKeyView", "GET"): Operation(id="api_keys.retrieve", answer=own.ApiKeyObject),
    ("accounts.views.ApiKeyView", "DELETE"): Operation(id="api_keys.delete", answer=Deleted),
    ("accounts.views.ApiKeyRotateView", "POST"): Operation(
        id="api_keys.rotate", answer=own.NewApiKeyObject, status=201, body=ApiKeyRotateInput
    ),
    ("accounts.views.MembersView", "GET"): Operation(id="members.list", answer=Page[own.MemberObject], query=PAGING),
    ("accounts.views.MembersView", "POST"): Operation(
        id="members.create", answer=own.MemberObject, status=201, body=MemberInput
    ),
    ("accounts.views.MemberView", "GET"): Operation(id="members.retrieve", answer=own.MemberObject),
    ("accounts.views.MemberView", "PATCH"): Operation(
        id="members.update", answer=own.MemberObject, body=MemberUpdateInput
    ),
    ("accounts.views.MemberView", "DELETE"): Operation(id="members.delete", answer=Deleted),
    ("accounts.views.ProjectsView", "GET"): Operation(id="projects.list", answer=Page[own.ProjectObject], query=PAGING),
    ("accounts.views.ProjectsView", "POST"): Operation(
        id="projects.create", answer=own.ProjectObject, status=201, body=ProjectInput
    ),
    ("accounts.views.ProjectView", "GET"): Operation(id="projects.retrieve", answer=own.ProjectObject),
    ("accounts.views.ProjectView", "PATCH"): Operation(
        id="projects.update", answer=own.ProjectObject, body=ProjectInput
    ),
    ("accounts.views.ProjectArchiveView", "POST"): Operation(id="projects.archive", answer=own.ProjectObject),
    ("audit.views.AuditEventsView", "GET"): Operation(
        id="audit_events.list", answer=Page[own.AuditEventObject], query=PAGING
    ),
    ("files.views.FilesView", "GET"): Operation(
        id="files.list", answer=Page[openai.FileObject], query={**PAGING, "purpose": "These alone."}
    ),
    ("files.views.FilesView", "POST"): Operation(id="files.create", answer=openai.FileObject, body=FileForm),
    ("files.views.FileView", "GET"): Operation(id="files.retrieve", answer=openai.FileObject),
    ("files.views.FileView", "DELETE"): Operation(id="files.delete", answer=Deleted),
    ("files.views.FileContentView", "GET"): Operation(id="files.content", answer=BINARY),
    ("uploads.views.UploadsView", "POST"): Operation(id="uploads.create", answer=openai.UploadObject, body=UploadInput),
    ("uploads.views.OneUploadView", "GET"): Operation(id="uploads.retrieve", answer=openai.UploadObject),
    ("uploads.views.UploadPartsView", "GET"): Operation(
        id="uploads.parts.list", answer=Page[openai.UploadPartObject], query=PAGING
    ),
    ("uploads.views.UploadPartsView", "POST"): Operation(
        id="uploads.parts.create", answer=openai.UploadPartObject, body=PartForm
    ),
    ("uploads.views.UploadCompleteView", "POST"): Operation(
        id="uploads.complete", answer=openai.UploadObject, body=CompleteInput
    ),
    ("uploads.views.UploadCancelView", "POST"): Operation(id="uploads.cancel", answer=openai.UploadObject),
    ("datasets.views.DatasetsView", "GET"): Operation(id="datasets.list", answer=Page[own.DatasetObject], query=PAGING),
    ("datasets.views.DatasetsView", "POST"): Operation(
        id="datasets.create", answer=own.DatasetObject, status=201, body=DatasetInput
    ),
    ("datasets.views.DatasetView", "GET"): Operation(id="datasets.retrieve", answer=own.DatasetObject),
    ("datasets.views.DatasetView", "DELETE"): Operation(id="datasets.delete", answer=Deleted),
    ("datasets.views.DatasetErrorsView", "GET"): Operation(id="datasets.errors", answer=own.DatasetErrorList),
    ("datasets.views.DatasetPreviewView", "GET"): Operation(
        id="datasets.preview", answer=own.PreviewRows, query={"limit": "1 to 20 rows."}
    ),
    ("batches.views.BatchesView", "GET"): Operation(id="batches.list", answer=Page[openai.BatchObject], query=PAGING),
    ("batches.views.BatchesView", "POST"): Operation(id="batches.create", answer=openai.BatchObject, body=BatchInput),
    ("batches.views.BatchView", "GET"): Operation(id="batches.retrieve", answer=openai.BatchObject),
    ("batches.views.BatchCancelView", "POST"): Operation(id="batches.cancel", answer=openai.BatchObject),
    ("batches.views.BatchResultsView", "GET"): Operation(
        id="batches.results",
        answer=LINES,
        query={"after": "How many rows the caller has already.", "follow": "`true`: until the batch has ended."},
    ),
    ("catalog.views.ModelsView", "GET"): Operation(id="models.list", answer=openai.ModelList),
    ("catalog.views.ModelView", "GET"): Operation(id="models.retrieve", answer=openai.ModelObject),
    ("catalog.views.BaseModelsView", "GET"): Operation(
        id="base_models.list", answer=Page[own.BaseModelObject], query=PAGING
    ),
    ("catalog.views.BaseModelsView", "POST"): Operation(
        id="base_models.create", answer=own.BaseModelObject, status=201, body=BaseModelInput
    ),
    ("catalog.views.BaseModelView", "GET"): Operation(id="base_models.retrieve", answer=own.BaseModelObject),
    ("catalog.views.BaseModelView", "DELETE"): Operation(id="base_models.delete", answer=Deleted),
    ("catalog.views.SpeculatorsView", "GET"): Operation(
        id="speculators.list", answer=Page[own.SpeculatorObject], query=PAGING
    ),
    ("catalog.views.SpeculatorsView", "POST"): Operation(
        id="speculators.import", answer=own.SpeculatorObject, status=201, body=ImportInput
    ),
    ("catalog.views.SpeculatorView", "GET"): Operation(id="speculators.retrieve", answer=own.SpeculatorObject),
    ("catalog.views.SpeculatorView", "DELETE"): Operation(id="speculators.delete", answer=Deleted),
    ("exchanges.views.SpeculatorExportView", "POST"): Operation(
        id="speculators.export", answer=openai.FileObject, status=201, body=ExportInput
    ),
    ("catalog.views.SpeculatorPlotView", "GET"): Operation(
        id="speculators.plot",
        answer=PNG,
        also=SVG,
        query={"name": "`evaluation`, `loss`, `acceptance_over_steps` or `acceptance_per_position`."},
    ),
    ("jobs.views.JobListView", "GET"): Operation(id="jobs.list", answer=Page[own.JobObject], query=PAGING),
    ("jobs.views.JobView", "GET"): Operation(id="jobs.retrieve", answer=own.JobObject),
    ("jobs.views.JobEventsView", "GET"): Operation(
        id="jobs.events", answer=Page[own.JobEventObject], query={"after": "The last event that was seen."}
    ),
    ("jobs.views.JobCancelView", "POST"): Operation(id="jobs.cancel", answer=own.JobObject, status=202),
    ("fine_tuning.views.FineTuningJobsView", "GET"): Operation(
        id="fine_tuning.jobs.list", answer=Page[openai.FineTuningJobObject], query=PAGING
    ),
    ("fine_tuning.views.FineTuningJobsView", "POST"): Operation(
        id="fine_tuning.jobs.create", answer=openai.FineTuningJobObject, body=JobInput
    ),
    ("fine_tuning.views.FineTuningJobView", "GET"): Operation(
        id="fine_tuning.jobs.retrieve", answer=openai.FineTuningJobObject
    ),
    ("fine_tuning.views.FineTuningCancelView", "POST"): Operation(
        id="fine_tuning.jobs.cancel", answer=openai.FineTuningJobObject
    ),
    ("fine_tuning.views.FineTuningPauseView", "POST"): Operation(
        id="fine_tuning.jobs.pause", answer=openai.FineTuningJobObject
    ),
    ("fine_tuning.views.FineTuningResumeView", "POST"): Operation(
        id="fine_tuning.jobs.resume", answer=openai.FineTuningJobObject
    ),
    ("fine_tuning.views.FineTuningEventsView", "GET"): Operation(
        id="fine_tuning.jobs.events", answer=Page[openai.FineTuningEventObject], query=PAGING
    ),
    ("fine_tuning.views.FineTuningCheckpointsView", "GET"): Operation(
        id="fine_tuning.jobs.checkpoints", answer=Page[openai.FineTuningCheckpointObject], query=PAGING
    ),
    ("pipelines.views.PipelineListView", "GET"): Operation(
        id="pipelines.list", answer=Page[own.PipelineObject], query=PAGING
    ),
    ("pipelines.views.PipelineListView", "POST"): Operation(
        id="pipelines.create", answer=own.PipelineObject, status=201, body=PipelineRequest
    ),
    ("pipelines.views.PipelineView", "GET"): Operation(id="pipelines.retrieve", answer=own.PipelineObject),
    ("pipelines.views.PipelineCancelView", "POST"): Operation(id="pipelines.cancel", answer=own.PipelineObject),
    ("pipelines.views.PipelineResumeView", "POST"): Operation(id="pipelines.resume", answer=own.PipelineObject),
    ("captures.views.CaptureView", "GET"): Operation(id="deployments.capture.retrieve", answer=own.CaptureObject),
    ("captures.views.CaptureView", "POST"): Operation(
        id="deployments.capture.set", answer=own.CaptureObject, body=CaptureInput
    ),
    ("captures.views.CaptureView", "DELETE"): Operation(id="deployments.capture.end", answer=Deleted),
    ("captures.views.CaptureFileView", "POST"): Operation(
        id="deployments.capture.file", answer=openai.FileObject, status=201
    ),
    ("evaluations.views.EvaluationsView", "GET"): Operation(
        id="evaluations.list",
        answer=Page[own.EvaluationObject],
        query={**PAGING, "speculator_id": "Of this one alone."},
    ),
    ("evaluations.views.EvaluationsView", "POST"): Operation(
        id="evaluations.create", answer=own.EvaluationObject, status=201, body=EvaluationRequest
    ),
    ("evaluations.views.EvaluationView", "GET"): Operation(id="evaluations.retrieve", answer=own.EvaluationObject),
    ("evaluations.views.EvaluationCancelView", "POST"): Operation(
        id="evaluations.cancel", answer=own.EvaluationObject, status=202
    ),
    ("evaluations.views.EvaluationCertificateView", "GET"): Operation(
        id="evaluations.certificate", answer=own.CertificateObject
    ),
    ("evaluations.views.EvaluationPlotView", "GET"): Operation(
        id="evaluations.plot", answer=PNG, also=SVG, query={"format": "`png` or `svg`."}
    ),
    ("evaluations.views.CertificateKeyView", "GET"): Operation(
        id="certificates.public_key", answer=own.PublicKeyObject
    ),
    ("quotes.views.QuotesView", "GET"): Operation(id="quotes.list", answer=Page[QuoteObject], query=PAGING),
    ("quotes.views.QuotesView", "POST"): Operation(
        id="quotes.create", answer=QuoteObject, status=201, body=QuoteInput
    ),
    ("quotes.views.QuoteView", "GET"): Operation(id="quotes.retrieve", answer=QuoteObject),
    ("quotes.views.QuoteView", "PATCH"): Operation(id="quotes.update", answer=QuoteObject, body=QuoteUpdateInput),
    ("adapters.views.AdaptersView", "GET"): Operation(id="adapters.list", answer=Page[AdapterObject], query=PAGING),
    ("adapters.views.AdaptersView", "POST"): Operation(
        id="adapters.create", answer=AdapterObject, status=201, body=AdapterInput
    ),
    ("adapters.views.AdapterView", "GET"): Operation(id="adapters.retrieve", answer=AdapterObject),
    ("adapters.views.AdapterView", "DELETE"): Operation(id="adapters.delete", answer=Deleted),
    ("rollouts.views.RolloutsView", "GET"): Operation(
        id="deployments.rollouts.list", answer=Page[RolloutObject], query=PAGING
    ),
    ("rollouts.views.RolloutsView", "POST"): Operation(
        id="deployments.rollouts.create", answer=RolloutObject, status=201, body=RolloutInput
    ),
    ("rollouts.views.RolloutView", "GET"): Operation(id="deployments.rollouts.retrieve", answer=RolloutObject),
    ("rollouts.views.RolloutCancelView", "POST"): Operation(id="deployments.rollouts.cancel", answer=RolloutObject),
    ("distillations.views.DistillationsView", "GET"): Operation(
        id="distillations.list", answer=Page[DistillationObject], query=PAGING
    ),
    ("distillations.views.DistillationsView", "POST"): Operation(
        id="distillations.create", answer=DistillationObject, status=201, body=DistillationInput
    ),
    ("distillations.views.DistillationView", "GET"): Operation(
        id="distillations.retrieve", answer=DistillationObject
    ),
    ("distillations.views.DistillationCancelView", "POST"): Operation(
        id="distillations.cancel", answer=DistillationObject
    ),
    ("spending.views.SpendCapsView", "GET"): Operation(
        id="spend_caps.list", answer=Page[SpendCapObject], query=PAGING
    ),
    ("spending.views.SpendCapsView", "POST"): Operation(
        id="spend_caps.create", answer=SpendCapObject, status=201, body=SpendCapInput
    ),
    ("spending.views.SpendCapView", "GET"): Operation(id="spend_caps.retrieve", answer=SpendCapObject),
    ("spending.views.SpendCapView", "PATCH"): Operation(
        id="spend_caps.update", answer=SpendCapObject, body=SpendCapUpdateInput
    ),
    ("spending.views.SpendCapView", "DELETE"): Operation(id="spend_caps.delete", answer=Deleted),
    ("deployments.views.DeploymentsView", "GET"): Operation(
        id="deployments.list", answer=Page[own.DeploymentObject], query=PAGING
    ),
    ("deployments.views.DeploymentsView", "POST"): Operation(
        id="deployments.create", answer=own.DeploymentObject, status=201, body=DeploymentInput
    ),
    ("deployments.views.DeploymentView", "GET"): Operation(id="deployments.retrieve", answer=own.DeploymentObject),
    ("deployments.views.DeploymentView", "PATCH"): Operation(
        id="deployments.update", answer=own.DeploymentObject, body=DeploymentUpdateInput
    ),
    ("deployments.views.DeploymentView", "DELETE"): Operation(id="deployments.delete", answer=Deleted),
    ("deployments.views.DeploymentEventsView", "GET"): Operation(
        id="deployments.events", answer=Page[own.EventObject], query=PAGING
    ),
    ("deployments.views.DeploymentMetricsView", "GET"): Operation(
        id="deployments.metrics",
        answer=DeploymentMetricsPage,
        query={name: text for name, text in BUCKETS.items() if name in STRETCHES},
    ),
    ("deployments.views.DeploymentStartView", "POST"): Operation(
        id="deployments.start", answer=own.DeploymentObject, status=202
    ),
    ("deployments.views.DeploymentStopView", "POST"): Operation(
        id="deployments.stop", answer=own.DeploymentObject, status=202
    ),
    ("events.views.EventsView", "GET"): Operation(
        id="events.list",
        answer=Page[own.EventObject],
        also=EVENTS,
        query={**PAGING, "types": "Names or patterns, with commas.", "object_id": "Of this object alone."},
    ),
    ("events.views.EventView", "GET"): Operation(id="events.retrieve", answer=own.EventObject),
    ("webhooks.views.EndpointsView", "GET"): Operation(
        id="webhook_endpoints.list", answer=Page[own.WebhookEndpointObject], query=PAGING
    ),
    ("webhooks.views.EndpointsView", "POST"): Operation(
        id="webhook_endpoints.create", answer=own.WebhookEndpointWithSecret, status=201, body=EndpointInput
    ),
    ("webhooks.views.EndpointView", "GET"): Operation(
        id="webhook_endpoints.retrieve", answer=own.WebhookEndpointObject
    ),
    ("webhooks.views.EndpointView", "PATCH"): Operation(
        id="webhook_endpoints.update", answer=own.WebhookEndpointObject, body=EndpointUpdateInput
    ),
    ("webhooks.views.EndpointView", "DELETE"): Operation(id="webhook_endpoints.delete", answer=Deleted),
    ("webhooks.views.EndpointRotateView", "POST"): Operation(
        id="webhook_endpoints.rotate_secret", answer=own.WebhookEndpointWithSecret, body=RotateSecretInput
    ),
    ("webhooks.views.EndpointTestView", "POST"): Operation(
        id="webhook_endpoints.test", answer=own.WebhookDeliveryObject, status=202
    ),
    ("webhooks.views.DeliveriesView", "GET"): Operation(
        id="webhook_endpoints.deliveries.list",
        answer=Page[own.WebhookDeliveryObject],
        query={**PAGING, "status": "`pending`, `succeeded` or `failed` alone."},
    ),
    ("webhooks.views.DeliveryView", "GET"): Operation(
        id="webhook_endpoints.deliveries.retrieve", answer=own.WebhookDeliveryObject
    ),
    ("webhooks.views.DeliveryReplayView", "POST"): Operation(
        id="webhook_endpoints.deliveries.replay", answer=own.WebhookDeliveryObject, status=202
    ),
    ("usage.views.UsageView", "GET"): Operation(
        id="usage.retrieve",
        answer=own.UsageTotal,
        query={"start_time": "Unix seconds; the month's first unless given.", "end_time": "Unix seconds; or now."},
    ),
    ("usage.views.CompletionsUsageView", "GET"): Operation(
        id="organization.usage.completions", answer=openai.UsagePage, query=BUCKETS
    ),
    ("usage.views.CostsView", "GET"): Operation(id="organization.costs", answer=openai.CostPage, query=BUCKETS),
    ("gateway.views.chat_completions", "POST"): Operation(
        id="chat.completions.create", answer=own.Completion, also=EVENTS
    ),
    ("gateway.views.completions", "POST"): Operation(id="completions.create", answer=own.Completion, also=EVENTS),
}
