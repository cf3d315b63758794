"""One object of every kind that an organization can have, for tests that cover all routes."""

from dataclasses import dataclass
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
        """A cap of the project, because a test creates the organization's only cap."""
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

    def everything(self) -> dict[str, str]:
        """One id for each parameter."""
        names = (
            "key_id", "member_id", "project_id", "file_id", "upload_id", "dataset_id", "batch_id", "name", "model_id",
            "deployment_name", "speculator_id", "job_id", "fine_tuning_job_id", "pipeline_id", "deployment_id",
            "event_id", "endpoint_id", "delivery_id", "quote_id", "evaluation_id", "cap_id",
            "distillation_id", "adapter_id", "rollout_id",
        )  # fmt: skip
        return {name: self.id_of(name) for name in names}
