"""What operators can ask for of files and work on them: the API's requests, and the services its views call."""

from typing import Any

from control.operations.console.asking import Ask
from control.operations.console.offers import ids, models, prompts, ready, same
from control.tenants.accounts.models import Organization
from control.workflows.distillations.selectors import distillations_list
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import PipelineRequest, parse_pipeline_request
from control.workflows.pipelines.services import pipeline_create
from control.workflows.quotes.selectors import quotes_list
from workers.kinds import TRAINED_KINDS


def _create_pipeline(organization: Organization, body: dict[str, Any]) -> Pipeline:
    return pipeline_create(organization=organization, request=parse_pipeline_request(body))


CREATE_PIPELINE = Ask(
    title="Create a pipeline",
    request=PipelineRequest,
    run=_create_pipeline,
    choices=lambda organization: {
        "model": models(organization),
        "prompts_file": prompts(organization),
        "held_out_file": prompts(organization),
        "distillation_id": ids(distillations_list(organization)),
        "quote_id": ids(quotes_list(organization)),
        "training.kind": same(TRAINED_KINDS),
        "training.initial_speculator": ready(organization),
    },
)
