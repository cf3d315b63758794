"""Every operation of the API: what it is called, what it takes beside its path, and what it answers.

The keys are the names of view classes, and methods. A route without an entry fails the document's test.
"""

from collections.abc import Mapping

from control.billing.spending.serializers import SpendCapInput, SpendCapUpdateInput
from control.core.api.operation import EVENTS, LINES, PAGING, PNG, SVG, Operation
from control.data.files.schemas import FileObject
from control.operations.openapi import openai_shapes as openai
from control.operations.openapi import own_shapes as own
from control.operations.openapi.distillation_shapes import DistillationObject
from control.operations.openapi.shapes import Deleted, Page
from control.operations.openapi.spending_shapes import QuoteObject, SpendCapObject
from control.workflows.batches.serializers import BatchInput
from control.workflows.datasets.serializers import DatasetInput
from control.workflows.distillations.serializers import DistillationInput
from control.workflows.fine_tuning.requests import JobInput
from control.workflows.pipelines.requests import PipelineRequest
from control.workflows.quotes.serializers import QuoteInput, QuoteUpdateInput
from control.workflows.speculators.serializers import ExportInput, ImportInput

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


OPERATIONS: Mapping[tuple[str, str], Operation] = {
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
    ("SpeculatorsView", "GET"): Operation(
        id="speculators.list", response=Page[own.SpeculatorObject], query=PAGING
    ),
    ("SpeculatorsView", "POST"): Operation(
        id="speculators.import", response=own.SpeculatorObject, status=201, request=ImportInput
    ),
    ("SpeculatorView", "GET"): Operation(id="speculators.retrieve", response=own.SpeculatorObject),
    ("SpeculatorView", "DELETE"): Operation(id="speculators.delete", response=Deleted),
    ("SpeculatorExportView", "POST"): Operation(
        id="speculators.export", response=FileObject, status=201, request=ExportInput
    ),
    ("SpeculatorPlotView", "GET"): Operation(
        id="speculators.plot",
        response=PNG,
        also=SVG,
        query={"name": "`evaluation`, `loss`, `acceptance_over_steps` or `acceptance_per_position`."},
    ),
    ("JobListView", "GET"): Operation(id="jobs.list", response=Page[own.JobObject], query=PAGING),
    ("JobView", "GET"): Operation(id="jobs.retrieve", response=own.JobObject),
    ("JobEventsView", "GET"): Operation(
        id="jobs.events", response=Page[own.JobEventObject], query={"after": "The last event that was seen."}
    ),
    ("JobCancelView", "POST"): Operation(id="jobs.cancel", response=own.JobObject, status=202),
    ("FineTuningJobsView", "GET"): Operation(
        id="fine_tuning.jobs.list", response=Page[openai.FineTuningJobObject], query=PAGING
    ),
    ("FineTuningJobsView", "POST"): Operation(
        id="fine_tuning.jobs.create", response=openai.FineTuningJobObject, request=JobInput
    ),
    ("FineTuningJobView", "GET"): Operation(
        id="fine_tuning.jobs.retrieve", response=openai.FineTuningJobObject
    ),
    ("FineTuningCancelView", "POST"): Operation(
        id="fine_tuning.jobs.cancel", response=openai.FineTuningJobObject
    ),
    ("FineTuningPauseView", "POST"): Operation(
        id="fine_tuning.jobs.pause", response=openai.FineTuningJobObject
    ),
    ("FineTuningResumeView", "POST"): Operation(
        id="fine_tuning.jobs.resume", response=openai.FineTuningJobObject
    ),
    ("FineTuningEventsView", "GET"): Operation(
        id="fine_tuning.jobs.events", response=Page[openai.FineTuningEventObject], query=PAGING
    ),
    ("FineTuningCheckpointsView", "GET"): Operation(
        id="fine_tuning.jobs.checkpoints", response=Page[openai.FineTuningCheckpointObject], query=PAGING
    ),
    ("PipelineListView", "GET"): Operation(
        id="pipelines.list", response=Page[own.PipelineObject], query=PAGING
    ),
    ("PipelineListView", "POST"): Operation(
        id="pipelines.create", response=own.PipelineObject, status=201, request=PipelineRequest
    ),
    ("PipelineView", "GET"): Operation(id="pipelines.retrieve", response=own.PipelineObject),
    ("PipelineCancelView", "POST"): Operation(id="pipelines.cancel", response=own.PipelineObject),
    ("PipelineResumeView", "POST"): Operation(id="pipelines.resume", response=own.PipelineObject),
    ("QuotesView", "GET"): Operation(id="quotes.list", response=Page[QuoteObject], query=PAGING),
    ("QuotesView", "POST"): Operation(
        id="quotes.create", response=QuoteObject, status=201, request=QuoteInput
    ),
    ("QuoteView", "GET"): Operation(id="quotes.retrieve", response=QuoteObject),
    ("QuoteView", "PATCH"): Operation(id="quotes.update", response=QuoteObject, request=QuoteUpdateInput),
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
