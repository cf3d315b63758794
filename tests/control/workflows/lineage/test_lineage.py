"""The lineage of an object: all its ancestors and descendants, and no object that the caller does not see."""

from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from control.data.files.models import File
from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel, Speculator
from control.operations.console.rendering import page_url
from control.queue.jobs.models import Job
from control.serving.captures.services import capture_export
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.workflows.batches.models import Batch
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import prompts_file_store
from control.workflows.distillations.models import Distillation
from control.workflows.evaluations.models import Evaluation
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.lineage import graph as lineage_graph
from control.workflows.lineage.links import KINDS, LINKS
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import client_of, make_base_model, make_file, make_organization
from tests.control.operations.console.test_members import sign_in
from tests.control.workflows.datasets.test_filters import filtered
from tests.control.workflows.datasets.test_splits import make as make_dataset
from tests.control.workflows.pipelines.test_answers import chats
from tests.control.workflows.pipelines.test_sensitive import create as create_pipeline
from tests.control.world import World

pytestmark = pytest.mark.django_db


def add(model: type[models.Model], organization: Organization, **values: Any) -> Any:
    return model._default_manager.create(organization=organization, **values)


class Chain:
    """Captured requests of a deployment become prompts, answers, a speculator, and at last another deployment."""

    def __init__(self, organization: Organization, base_model: BaseModel) -> None:  # long: one object of each kind
        self.first = add(Deployment, organization, name="first", base_model=base_model)
        self.captured = make_file(organization)
        File.objects.filter(pk=self.captured.pk).update(made_from=self.first.pk)
        self.dataset = add(Dataset, organization, file=self.captured, status="valid", num_rows=1, num_answers=0)
        self.split_file = make_file(organization, filename="train.jsonl")
        File.objects.filter(pk=self.split_file.pk).update(made_from=self.dataset.pk)
        self.split = add(
            Dataset,
            organization,
            file=self.split_file,
            status="valid",
            num_rows=1,
            num_answers=0,
            origin={"dataset_id": self.dataset.pk},
        )
        self.mix = add(
            Dataset,
            organization,
            file=self.split_file,
            status="valid",
            num_rows=1,
            num_answers=0,
            origin={"mix": {"sources": [{"dataset_id": self.split.pk, "weight": 1.0}], "rows": 1, "seed": 0}},
        )
        self.answers = make_file(organization)
        self.batch = add(
            Batch,
            organization,
            job=add(Job, organization, kind="batch"),
            input_file=self.split_file,
            output_file=self.answers,
            endpoint="/v1/chat/completions",
        )
        self.distillation = add(Distillation, organization, batch=self.batch)
        named = {"base_model": base_model, "name": "s", "kind": "medusa"}
        self.initial = add(Speculator, organization, **named, version=1)
        self.speculator = add(Speculator, organization, **named, version=2)
        self.training, self.evaluating = (add(Job, organization, kind=kind) for kind in ("training", "evaluation"))
        self.second = add(Deployment, organization, name="second", base_model=base_model, speculator=self.speculator)
        self.pipeline = add(
            Pipeline,
            organization,
            name="p",
            base_model=base_model,
            prompts_file=self.split_file,
            held_out_file=self.split_file,
            batch=self.batch,
            training={"initial_speculator": self.initial.pk},
            training_job=self.training,
            evaluation_job=self.evaluating,
            speculator=self.speculator,
            deployment=self.second,
        )
        self.evaluation = add(Evaluation, organization, speculator=self.speculator, job=self.evaluating)
        canary = add(Deployment, organization, name="canary", base_model=base_model, canary_of=self.second)
        self.adapter = add(
            Adapter, organization, base_model=base_model, name="ft:m:s:1", rank=1, target_modules=[], size_bytes=1
        )
        self.second.adapters.add(self.adapter)
        self.tuning = add(Job, organization, kind="training")
        self.fine_tuning = add(
            FineTuningJob,
            organization,
            job=self.tuning,
            base_model=base_model,
            training_file=self.split_file,
            adapter=self.adapter,
        )
        terms = {"share_percent": 1, "min_requests": 1, "max_acceptance_drop": 1, "max_error_rate": 1, "max_seconds": 1}
        self.rollout = add(
            Rollout, organization, **terms, deployment=self.second, canary=canary, speculator=self.speculator
        )

    @property
    def ids(self) -> set[str]:
        return {row.pk for row in vars(self).values()}


def lineage(client: Client, object_id: str) -> dict[str, Any]:
    response = client.get(f"/v1/lineage/{object_id}")
    assert response.status_code == 200, response.content
    found: dict[str, Any] = response.json()
    return found


def ids(found: dict[str, Any]) -> set[str]:
    return {node["id"] for node in found["nodes"]}


def test_the_lineage_of_a_deployment_leads_from_captured_requests_to_the_next_deployment(
    client: Client, organization: Organization
) -> None:
    chain = Chain(organization, make_base_model())
    other = Chain(make_organization(), make_base_model())

    found = lineage(client, chain.first.pk)

    assert ids(found) == chain.ids - {chain.initial.pk}  # the initial speculator is no descendant
    assert not ids(found) & other.ids
    edges = {(edge["source"], edge["target"]) for edge in found["edges"]}
    assert edges >= {
        (chain.first.pk, chain.captured.pk),
        (chain.captured.pk, chain.dataset.pk),
        (chain.dataset.pk, chain.split.pk),
        (chain.split.pk, chain.mix.pk),
        (chain.split_file.pk, chain.batch.pk),
        (chain.batch.pk, chain.answers.pk),
        (chain.batch.pk, chain.distillation.pk),
        (chain.batch.pk, chain.pipeline.pk),
        (chain.pipeline.pk, chain.speculator.pk),
        (chain.speculator.pk, chain.evaluation.pk),
        (chain.speculator.pk, chain.rollout.pk),
        (chain.rollout.pk, chain.second.pk),
        (chain.split_file.pk, chain.fine_tuning.pk),
        (chain.fine_tuning.pk, chain.tuning.pk),
        (chain.fine_tuning.pk, chain.adapter.pk),
        (chain.adapter.pk, chain.second.pk),
    }
    by_id = {node["id"]: node for node in found["nodes"]}
    assert by_id[chain.captured.pk]["name"] == "rows.jsonl"
    assert by_id[chain.pipeline.pk] == {
        "type": "pipeline",
        "id": chain.pipeline.pk,
        "name": "p",
        "created_at": int(chain.pipeline.created_at.timestamp()),
        "deleted": False,
    }


def test_ancestors_and_descendants_are_two_views_of_one_relation(client: Client, organization: Organization) -> None:
    """If B is among A's descendants, A is among B's ancestors: each is in the other's graph."""
    chain = Chain(organization, make_base_model())
    graphs = {identity: ids(lineage(client, identity)) for identity in chain.ids}

    for identity, related in graphs.items():
        assert all(identity in graphs[other] for other in related), identity
    assert chain.initial.pk in graphs[chain.speculator.pk]
    assert chain.answers.pk not in graphs[chain.speculator.pk]  # made from the same batch, but not an ancestor


def test_every_kind_has_links_and_every_column_exists(organization: Organization) -> None:
    assert set(KINDS) == {end for link in LINKS for end in (link.parent, link.child)}
    for link in LINKS:
        holder = KINDS[link.child if link.in_child else link.parent].model
        list(holder._default_manager.values(link.column)[:1])
    for kind in KINDS.values():
        assert str(kind.model().pk).startswith(kind.prefix)


def test_deleted_objects_and_ids_of_missing_rows_are_marked_as_deleted(
    client: Client, organization: Organization
) -> None:
    chain = Chain(organization, make_base_model())
    File.objects.filter(pk=chain.captured.pk).update(deleted_at=timezone.now())
    Speculator.objects.filter(pk=chain.initial.pk).update(status="deleted")
    dataset_id = chain.dataset.pk
    Dataset.objects.filter(pk__in=[chain.split.pk, dataset_id]).delete()

    found = lineage(client, chain.speculator.pk)

    by_id = {node["id"]: node for node in found["nodes"]}
    assert by_id[chain.initial.pk]["deleted"]
    assert by_id[chain.dataset.pk] == {
        "type": "dataset", "id": chain.dataset.pk, "name": None, "created_at": None, "deleted": True
    }  # fmt: skip
    assert {node["id"] for node in found["nodes"] if node["deleted"]} == {chain.initial.pk, chain.dataset.pk}
    assert [node for node in lineage(client, chain.captured.pk)["nodes"] if node["deleted"]] != []


def test_ids_of_another_organization_or_project_are_not_found_and_never_shown(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    """Foreign ids stay hidden even if an own row names one, which only a fault of the service could cause."""
    own, foreign = Chain(organization, make_base_model()), Chain(other_organization, make_base_model())
    File.objects.filter(pk=own.captured.pk).update(made_from=foreign.first.pk)
    Batch.objects.filter(pk=own.batch.pk).update(resumed_from=foreign.batch)
    project = project_create(organization=organization, name="project")
    File.objects.filter(pk=own.split_file.pk).update(project=project)
    Dataset.objects.filter(pk=own.split.pk).update(project=project)
    in_project = client_of(organization, project=project)

    assert client.get(f"/v1/lineage/{foreign.first.pk}").status_code == 404
    assert client.get("/v1/lineage/unknown").status_code == 404
    assert not ids(lineage(client, own.batch.pk)) & foreign.ids
    assert in_project.get(f"/v1/lineage/{own.batch.pk}").status_code == 404
    assert ids(lineage(in_project, own.split.pk)) == {own.split_file.pk, own.split.pk}


def test_the_graph_is_limited_and_its_queries_do_not_grow_with_the_number_of_objects(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_model, counts = make_base_model(), []
    speculator = add(Speculator, organization, base_model=base_model, name="s", kind="medusa")
    lineage(client, speculator.pk)  # also records that the key is used
    for number in range(41):
        add(Deployment, organization, name=f"d{number}", base_model=base_model, speculator=speculator)
        if number in (0, 40):
            with CaptureQueriesContext(connection) as queries:
                found = lineage(client, speculator.pk)
            counts.append(len(queries.captured_queries))
            assert (len(found["nodes"]), found["truncated"]) == (number + 2, False)
    assert counts[0] == counts[1]

    monkeypatch.setattr(lineage_graph, "MAX_NODES", 10)
    found = lineage(client, speculator.pk)
    assert (len(found["nodes"]), found["truncated"]) == (10, True)
    assert all(edge["source"] in ids(found) and edge["target"] in ids(found) for edge in found["edges"])


def test_the_search_ends_if_rows_form_a_cycle(client: Client, organization: Organization) -> None:
    one, two = make_file(organization), make_file(organization)
    File.objects.filter(pk=one.pk).update(made_from=two.pk)
    File.objects.filter(pk=two.pk).update(made_from=one.pk)
    assert ids(lineage(client, one.pk)) == {one.pk, two.pk}


def test_files_that_the_service_makes_name_their_origin(organization: Organization) -> None:
    world = World(organization)
    captured = capture_export(capture=world.deployment.capture)
    prompts = prompts_file_store(file=world.file, param="file_id")

    assert captured.made_from == world.deployment.pk
    assert prompts.made_from == world.file.pk


def test_a_pipeline_with_redacted_answers_leads_back_to_the_uploaded_file(
    client: Client, organization: Organization
) -> None:
    rows = chats()
    rows[3]["messages"][1]["content"] = "write to ann@example.com"
    logs = make_file(organization, rows, purpose="fine-tune")
    model = make_base_model(organization=organization)
    body: dict[str, Any] = {"model": model.name, "prompts_file": logs.pk, "answers": "file"}

    made = create_pipeline(client, **body, on_sensitive="redact")

    assert made["sensitive"]["prompts_file"]["num_found"] == 1
    assert logs.pk in ids(lineage(client, made["id"]))
    assert made["id"] in ids(lineage(client, logs.pk))


def test_the_file_of_a_filtered_dataset_names_its_source(client: Client, organization: Organization) -> None:
    source = make_dataset(client, organization, b'{"prompt": "one"}\n{"prompt": "two"}')

    made = filtered(client, source["id"], contains="one")

    assert {"source": source["id"], "target": made["file_id"]} in lineage(client, made["id"])["edges"]


def test_the_console_draws_the_lineage_of_files_speculators_and_deployments() -> None:
    organization, foreign = make_organization(), make_organization()
    chain, other = Chain(organization, make_base_model()), Chain(foreign, make_base_model())
    member = sign_in(organization, "owner")

    for row in (chain.captured, chain.speculator, chain.second):
        link = reverse("lineage", args=[row.pk])
        assert link in member.get(page_url(row)).content.decode()
        page = member.get(link).content.decode()
        drawing = page[page.index("console-lineage") :]
        drawing = drawing[: drawing.index("</figure>")]
        assert drawing.count("<rect ") == len(lineage_graph.lineage_of(organization, row.pk).nodes) > 5
        assert page_url(chain.pipeline) in drawing
        assert [identity for identity in other.ids if identity in page] == []


def test_kinds_cover_the_tables_of_work(organization: Organization) -> None:
    """A new table with a foreign key to a kind must become a kind, or be in `others` if lineage leaves it out."""
    others = {
        *("captures.Capture", "captures.CapturedRequest", "deployments.DeploymentSample"),
        *("deployments.Deployment_adapters", "deployments.Replica", "devices.DeviceLease", "jobs.JobEvent"),
        *("jobs.JobShard", "pipelines.PipelineEvent", "quotes.Quote", "uploads.Upload"),
        # lineage shows the pipeline and the rollout of a round instead of the round
        *("acceptance.AcceptanceWatch", "loops.Loop", "loops.LoopRound", "rollouts.RolloutEvidence"),
    }
    kinds = {kind.model for kind in KINDS.values()}
    referring = {
        model._meta.label
        for model in apps.get_models(include_auto_created=True)
        if model not in kinds and any(field.related_model in kinds for field in model._meta.concrete_fields)
    }
    assert referring <= others
