"""Every operation of the API: what it is called, what it takes beside its path, and what it answers.

The keys are the names of view classes, and methods. A route without an entry fails the document's test.
"""

from collections.abc import Mapping

from control.core.api.operation import EVENTS, PAGING, PNG, SVG, Operation
from control.data.files.schemas import FileObject
from control.operations.openapi import openai_shapes as openai
from control.operations.openapi import own_shapes as own
from control.operations.openapi.shapes import Deleted, Page
from control.workflows.fine_tuning.requests import JobInput
from control.workflows.pipelines.requests import PipelineRequest
from control.workflows.speculators.serializers import ExportInput, ImportInput

OPERATIONS: Mapping[tuple[str, str], Operation] = {
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
    ("chat_completions", "POST"): Operation(
        id="chat.completions.create", response=own.Completion, also=EVENTS
    ),
    ("completions", "POST"): Operation(id="completions.create", response=own.Completion, also=EVENTS),
}
