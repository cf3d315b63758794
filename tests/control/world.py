"""One object of every kind that an organization can have, and a valid body for every operation that takes one.

The tests that cover all routes use both, and fail for an operation without an entry in BODIES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db import transaction

from control.billing.spending.models import SpendCap
from control.billing.spending.services import spend_cap_create
from control.data.files.models import File
from control.data.uploads.models import Upload
from control.data.uploads.services import upload_create
from control.models.adapters.models import Adapter
from control.models.adapters.services import adapter_create
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.services import speculator_create, speculator_ready
from control.queue.jobs.models import Job
from control.serving.captures.services import capture_set, request_capture
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollout_create
from control.tenants.accounts.models import Member, Organization, Project
from control.tenants.administration.services import member_invite, project_create
from control.tenants.events.models import Event
from control.tenants.events.services import event_record, events_number
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.services import endpoint_create, endpoint_test
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import dataset_create
from control.workflows.distillations.models import Distillation
from control.workflows.distillations.services import distillation_create
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_finish, evaluation_start
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline
from control.workflows.quotes.models import Quote
from control.workflows.quotes.services import quote_create
from tests.control.factories import chat_row, make_base_model, make_file, make_job, make_key
from tests.control.models.adapters.support import make_adapter_files
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.control.workflows.pipelines.helpers import make_pipeline


@dataclass
class World:
    """Objects of one organization. Each is created when it is first accessed."""

    organization: Organization

    @property
    def tag(self) -> str:
        return self.organization.pk[-8:]

    @cached_property
    def base_model(self) -> BaseModel:
        return make_base_model(f"model-{self.tag}", self.organization)

    @cached_property
    def file(self) -> File:
        return make_file(self.organization, [chat_row(f"row-{number}") for number in range(20)])

    @cached_property
    def upload(self) -> Upload:
        return upload_create(
            organization=self.organization, filename="u", purpose="batch", mime_type="text/plain", size_bytes=4
        )

    @cached_property
    def dataset(self) -> Dataset:
        return dataset_create(organization=self.organization, file=self.file)

    @cached_property
    def counted_dataset(self) -> Dataset:
        """A dataset with token counts, as if the model's tokenizer had been present."""
        made = dataset_create(organization=self.organization, file=self.file, base_model=self.base_model)
        Dataset.objects.filter(pk=made.pk).update(num_tokens=1000)
        made.refresh_from_db()
        return made

    @cached_property
    def quote(self) -> Quote:
        return quote_create(organization=self.organization, dataset=self.counted_dataset, basis=Quote.Basis.PILOT)

    @cached_property
    def rollout(self) -> Rollout:
        Deployment.objects.filter(pk=self.deployment.pk).update(state=Deployment.State.READY)
        self.deployment.refresh_from_db()
        return rollout_create(
            deployment=self.deployment,
            speculator=self.speculator,
            share_percent=10,
            terms=Terms(min_requests=1, max_acceptance_drop=0.1, max_error_rate=0.1),
            max_seconds=60,
        )

    @cached_property
    def adapter_files(self) -> tuple[File, File]:
        return make_adapter_files(self.organization)

    @cached_property
    def adapter(self) -> Adapter:
        config, weights = self.adapter_files
        return adapter_create(
            organization=self.organization,
            name=f"a-{self.tag}",
            base_model=self.base_model,
            config_file=config,
            weights_file=weights,
        )

    @cached_property
    def distillation(self) -> Distillation:
        return distillation_create(organization=self.organization, base_model=self.base_model, prompts_file=self.file)

    @cached_property
    def spend_cap(self) -> SpendCap:
        """A cap of the project, because an organization can have only one cap, which a test creates."""
        return spend_cap_create(organization=self.organization, project=self.project, nanousd=10**15)

    @cached_property
    def batch(self) -> Batch:
        return batch_create(
            organization=self.organization,
            input_file=self.file,
            endpoint="/v1/chat/completions",
            model=self.base_model.name,
        )

    @cached_property
    def job(self) -> Job:
        return make_job(self.organization)

    @cached_property
    def speculator(self) -> Speculator:
        made = speculator_create(
            organization=self.organization, base_model=self.base_model, name=f"s-{self.tag}", kind="medusa"
        )
        return speculator_ready(speculator=made, storage_prefix="s", training={})

    @cached_property
    def evaluation(self) -> Evaluation:
        """An evaluation in which all outputs were equal."""
        made = evaluation_start(speculator=self.speculator, prompts=self.file, rows_key="rows", settings={})
        evaluation_finish(evaluation=made, report={}, evidence=make_evidence(), plots_prefix="e")
        made.refresh_from_db()
        return made

    @cached_property
    def deployment(self) -> Deployment:
        made = deployment_create(organization=self.organization, name=f"d-{self.tag}", base_model=self.base_model)
        capture_set(deployment=made, hours=24)
        request_capture(deployment_id=made.pk, endpoint="/v1/chat/completions", body=chat_row()["body"])
        return made

    @cached_property
    def pipeline(self) -> Pipeline:
        return make_pipeline(self.organization, base_model=self.base_model, name=f"p-{self.tag}")

    @cached_property
    def fine_tuning_job(self) -> FineTuningJob:
        return FineTuningJob.objects.create(
            organization=self.organization, pipeline=self.pipeline, training_file=self.file
        )

    @cached_property
    def project(self) -> Project:
        return project_create(organization=self.organization, name=f"project {self.tag}")

    @cached_property
    def member(self) -> Member:
        return member_invite(organization=self.organization, email=f"{self.tag}@example.com", role=Member.Role.MEMBER)

    @cached_property
    def key_id(self) -> str:
        return make_key(self.organization)[0].pk

    @cached_property
    def event(self) -> Event:
        with transaction.atomic():
            event = event_record(
                organization_id=self.organization.pk, type="batch.completed", object_id=f"batch_{self.tag}"
            )
        events_number(self.organization)
        return event

    @cached_property
    def endpoint(self) -> WebhookEndpoint:
        url = f"https://{self.tag}.example.com/"
        return endpoint_create(organization=self.organization, url=url, events=["*"])[0]

    @cached_property
    def delivery(self) -> WebhookDelivery:
        return endpoint_test(endpoint=self.endpoint)

    def id_of(self, parameter: str) -> str:
        """A valid id for the parameter of a path or body. Raises: KeyError: the parameter is unknown."""
        made: dict[str, Any] = {
            "key_id": lambda: self.key_id,
            "member_id": lambda: self.member.public_id,
            "project_id": lambda: self.project.pk,
            "file_id": lambda: self.file.pk,
            "upload_id": lambda: self.upload.pk,
            "dataset_id": lambda: self.dataset.pk,
            "batch_id": lambda: self.batch.pk,
            "name": lambda: self.base_model.name,
            "model_id": lambda: self.base_model.pk,
            "deployment_name": lambda: self.deployment.name,
            "speculator_id": lambda: self.speculator.pk,
            "job_id": lambda: self.job.pk,
            "fine_tuning_job_id": lambda: self.fine_tuning_job.pk,
            "pipeline_id": lambda: self.pipeline.pk,
            "quote_id": lambda: self.quote.pk,
            "distillation_id": lambda: self.distillation.pk,
            "adapter_id": lambda: self.adapter.pk,
            "rollout_id": lambda: self.rollout.pk,
            "cap_id": lambda: self.spend_cap.pk,
            "evaluation_id": lambda: self.evaluation.pk,
            "deployment_id": lambda: self.deployment.pk,
            "event_id": lambda: self.event.id,
            "endpoint_id": lambda: self.endpoint.pk,
            "delivery_id": lambda: self.delivery.pk,
        }
        return str(made[parameter]())

    def ids_of_all_objects(self) -> dict[str, str]:
        """Creates one object of each kind. Returns: an id for each parameter."""
        names = (
            "key_id", "member_id", "project_id", "file_id", "upload_id", "dataset_id", "batch_id", "name", "model_id",
            "deployment_name", "speculator_id", "job_id", "fine_tuning_job_id", "pipeline_id", "deployment_id",
            "event_id", "endpoint_id", "delivery_id", "quote_id", "evaluation_id", "cap_id",
            "distillation_id", "adapter_id", "rollout_id",
        )  # fmt: skip
        return {name: self.id_of(name) for name in names}


@dataclass(frozen=True, slots=True)
class Body:
    make: Callable[[World], dict[str, Any]]
    # Maps each member of the body that names an object to the parameter of `World.id_of` for the object's id.
    references: Mapping[str, str] = field(default_factory=dict)


def _pipeline(world: World) -> dict[str, Any]:
    return {"name": "new", "model": world.base_model.name, "prompts_file": world.file.pk}


NO_BODY = Body(lambda world: {})
FORM = Body(lambda world: {})  # multipart: the test sends a file
BODIES: Mapping[str, Body] = {
    "POST /v1/api_keys": Body(
        lambda world: {"name": "new"}, {"project_id": "project_id", "deployment_ids.0": "deployment_id"}
    ),
    "POST /v1/api_keys/{key_id}/rotate": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/members": Body(lambda world: {"email": "new@example.com"}),
    "PATCH /v1/members/{member_id}": Body(lambda world: {"role": "owner"}),
    "POST /v1/projects": Body(lambda world: {"name": "new"}),
    "PATCH /v1/projects/{project_id}": Body(lambda world: {"name": "new"}),
    "POST /v1/projects/{project_id}/archive": NO_BODY,
    "POST /v1/files": FORM,
    "POST /v1/uploads": Body(
        lambda world: {"bytes": 4, "filename": "f", "mime_type": "text/plain", "purpose": "batch"}
    ),
    "POST /v1/uploads/{upload_id}/parts": FORM,
    "POST /v1/uploads/{upload_id}/complete": Body(lambda world: {"part_ids": ["part_1"]}),
    "POST /v1/uploads/{upload_id}/cancel": NO_BODY,
    "POST /v1/datasets": Body(lambda world: {"file_id": world.file.pk}, {"file_id": "file_id", "model": "name"}),
    "POST /v1/batches": Body(
        lambda world: {
            "input_file_id": world.file.pk,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        {"input_file_id": "file_id", "model": "name", "quote_id": "quote_id"},
    ),
    "POST /v1/batches/{batch_id}/cancel": NO_BODY,
    "POST /v1/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs": Body(
        lambda world: {"model": world.base_model.name, "training_file": world.file.pk},
        {"model": "name", "training_file": "file_id", "validation_file": "file_id"},
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/pause": NO_BODY,
    "POST /v1/fine_tuning/jobs/{job_id}/resume": NO_BODY,
    "POST /v1/pipelines": Body(
        _pipeline,
        {
            "model": "name",
            "prompts_file": "file_id",
            "held_out_file": "file_id",
            "training.initial_speculator": "speculator_id",
            "quote_id": "quote_id",
        },
    ),
    "POST /v1/pipelines/{pipeline_id}/cancel": NO_BODY,
    "POST /v1/pipelines/{pipeline_id}/resume": NO_BODY,
    "POST /v1/deployments/{deployment_id}/capture": Body(lambda world: {"hours": 24}),
    "POST /v1/deployments/{deployment_id}/capture/file": NO_BODY,
    "POST /v1/evaluations": Body(
        lambda world: {"speculator_id": world.speculator.pk, "prompts_file": world.file.pk},
        {"speculator_id": "speculator_id", "prompts_file": "file_id"},
    ),
    "POST /v1/evaluations/{evaluation_id}/cancel": NO_BODY,
    "POST /v1/quotes": Body(lambda world: {"dataset_id": world.counted_dataset.pk}, {"dataset_id": "dataset_id"}),
    "POST /v1/base_models": Body(lambda world: {"name": "new", "source": "s3://models/new"}),
    "POST /v1/deployments/{deployment_id}/rollouts": Body(
        lambda world: {"speculator_id": world.speculator.pk}, {"speculator_id": "speculator_id"}
    ),
    "POST /v1/deployments/{deployment_id}/rollouts/{rollout_id}/cancel": NO_BODY,
    "POST /v1/adapters": Body(
        lambda world: {
            "name": "new",
            "model": world.base_model.name,
            "config_file": world.adapter_files[0].pk,
            "weights_file": world.adapter_files[1].pk,
        },
        {"model": "name", "config_file": "file_id", "weights_file": "file_id"},
    ),
    "POST /v1/distillations": Body(
        lambda world: {"model": world.base_model.name, "prompts_file": world.file.pk},
        {"model": "name", "prompts_file": "file_id", "quote_id": "quote_id"},
    ),
    "POST /v1/distillations/{distillation_id}/cancel": NO_BODY,
    "PATCH /v1/quotes/{quote_id}": Body(lambda world: {"cap": 1.5}),
    "POST /v1/spend_caps": Body(lambda world: {"amount": 1_000_000}, {"project_id": "project_id"}),
    "PATCH /v1/spend_caps/{cap_id}": Body(lambda world: {"amount": 2_000_000}),
    "POST /v1/speculators": Body(
        lambda world: {
            "file_id": world.file.pk,
            "format": "speculators",
            "model": world.base_model.name,
            "name": "new",
        },
        {"file_id": "file_id", "model": "name"},
    ),
    "POST /v1/speculators/{speculator_id}/export": Body(lambda world: {"format": "medusa"}),
    "POST /v1/deployments": Body(
        lambda world: {"name": "new", "model": world.base_model.name},
        {"model": "name", "speculator_id": "speculator_id", "adapters.0": "adapter_id"},
    ),
    "PATCH /v1/deployments/{deployment_id}": Body(
        lambda world: {"speculator_id": None}, {"speculator_id": "speculator_id", "adapters.0": "adapter_id"}
    ),
    "POST /v1/deployments/{deployment_id}/start": NO_BODY,
    "POST /v1/deployments/{deployment_id}/stop": NO_BODY,
    "POST /v1/webhook_endpoints": Body(lambda world: {"url": "https://example.com/"}),
    "PATCH /v1/webhook_endpoints/{endpoint_id}": Body(lambda world: {"description": "new"}),
    "POST /v1/webhook_endpoints/{endpoint_id}/rotate_secret": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/webhook_endpoints/{endpoint_id}/test": NO_BODY,
    "POST /v1/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/replay": NO_BODY,
    "POST /v1/chat/completions": Body(
        lambda world: {"model": "nothing", "messages": [{"role": "user", "content": "x"}]}, {"model": "deployment_name"}
    ),
    "POST /v1/completions": Body(lambda world: {"model": "nothing", "prompt": "x"}, {"model": "deployment_name"}),
}


def with_reference(body: dict[str, Any], member: str, value: str) -> dict[str, Any]:
    """Returns `body` with `value` at the path `member`, which leads into a list (`ids.0`) or object (`training.x`)."""
    name, _, rest = member.partition(".")
    if not rest:
        return {**body, name: value}
    return {**body, name: [value] if rest.isdigit() else {**body.get(name, {}), rest: value}}
