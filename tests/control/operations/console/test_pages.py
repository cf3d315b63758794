"""Pages of evaluations, datasets, captures, distillations, adapters and rollouts, and the buttons on these pages."""

import re

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel, Speculator
from control.queue.jobs.models import Job
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.rollouts.decision import Evidence, Terms, decide, gates_of
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.verdicts import verdict_of
from control.tenants.accounts.models import Member, Organization, Project, User
from control.tenants.accounts.selectors import api_key_authenticate
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_validate
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_start
from tests.control.factories import make_base_model, make_file, make_key, make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.world import World


@pytest.fixture
def operator(db: None) -> Client:
    return operator_client()


@pytest.fixture
def world(db: None) -> World:
    return World(make_organization("Acme"))


def test_pages_open_and_link_to_each_other(operator: Client, world: World) -> None:
    deployment, dataset, evaluation = world.deployment, world.dataset, world.evaluation
    for model, pk in (
        ("evaluations_evaluation", evaluation.pk),
        ("datasets_dataset", dataset.pk),
        ("captures_capture", deployment.pk),
        ("accounts_project", world.project.pk),
    ):
        page(operator, reverse(f"admin:{model}_changelist"))
        page(operator, change_path(model, pk))

    html = page(operator, change_path("evaluations_evaluation", evaluation.pk))
    assert change_path("catalog_speculator", world.speculator.pk) in html
    assert change_path("jobs_job", evaluation.job_id) in html
    assert change_path("evaluations_evaluation", evaluation.pk) in page(
        operator, change_path("catalog_speculator", world.speculator.pk)
    )


def test_a_button_resumes_a_batch_that_ended_early(operator: Client, world: World) -> None:
    batch = world.batch
    assert "/resume" not in page(operator, change_path("batches_batch", batch.pk))
    batch_validate(batch=batch)
    batch_assemble(batch=batch, final="failed")
    assert "/resume" in page(operator, change_path("batches_batch", batch.pk))

    assert press(operator, "batches_batch", batch.pk, "resume") == 302

    assert change_path("batches_batch", batch.pk) in page(
        operator, change_path("batches_batch", batch.resumptions.get().pk)
    )


def test_a_button_cancels_an_evaluation(operator: Client, world: World) -> None:
    evaluation = evaluation_start(
        speculator=world.speculator, prompts=world.file, rows_key="rows", settings={}, memory_needed={}
    )

    assert press(operator, "evaluations_evaluation", evaluation.pk, "cancel") == 302

    assert Evaluation.objects.get().job.cancel_requested_at is not None
    assert "/cancel" not in page(operator, change_path("evaluations_evaluation", evaluation.pk))


def test_ending_a_capture_deletes_it_and_redirects_to_the_list(operator: Client, world: World) -> None:
    path = reverse("admin:captures_capture_end", args=[quote(world.deployment.pk)])

    response = operator.post(path, {"_form_submitted": "True"})

    assert response.headers["Location"] == reverse("admin:captures_capture_changelist")
    assert not Capture.objects.exists()
    assert not CapturedRequest.objects.exists()


def test_the_page_of_a_dataset_shows_an_error_but_not_the_text_of_its_line(operator: Client) -> None:
    organization = make_organization()
    world = World(organization, file=make_file(organization, b"a secret\n"))

    html = page(operator, change_path("datasets_dataset", world.dataset.pk))

    assert "invalid_json_line" in html
    assert "secret" not in html


def test_a_button_deletes_an_unused_speculator(operator: Client, world: World) -> None:
    assert press(operator, "catalog_speculator", world.speculator.pk, "delete") == 302

    assert Speculator.objects.get().status == "deleted"


def test_a_model_in_use_cannot_be_deleted(operator: Client, world: World) -> None:
    used, spare = world.speculator.base_model, make_base_model("spare", world.organization)

    for model in (used, spare):
        press(operator, "catalog_basemodel", model.pk, "delete")

    assert list(BaseModel.objects.all()) == [used]


def test_an_owner_can_be_removed_while_another_owner_remains(operator: Client, world: World) -> None:
    first, second = (
        Member.objects.create(organization=world.organization, user=User.objects.create_user(name), role=role)
        for name, role in (("ana", Member.Role.OWNER), ("ben", Member.Role.MEMBER))
    )

    press(operator, "accounts_member", first.pk, "remove")
    assert Member.objects.filter(pk=first.pk).exists(), "the last owner must not be removed"

    operator.post(reverse("admin:accounts_member_change_role", args=[second.pk]), {"role": "owner"})
    press(operator, "accounts_member", first.pk, "remove")
    assert [(member.user.username, member.role) for member in Member.objects.all()] == [("ben", "owner")]


def test_a_project_is_created_and_archived(operator: Client, world: World) -> None:
    operator.post(reverse("admin:accounts_project_add"), {"organization": world.organization.pk, "name": "research"})
    project = Project.objects.get()

    press(operator, "accounts_project", project.pk, "archive")

    project.refresh_from_db()
    assert (project.name, project.archived_at is None) == ("research", False)


def test_the_secret_of_a_rotated_key_is_shown_once(operator: Client) -> None:
    key, old = make_key()
    path = reverse("admin:accounts_apikey_rotate", args=[quote(key.pk)])

    response = operator.post(path, {"_form_submitted": "True"}, follow=True)

    (token,) = re.findall(r"sk_live_\w{44}", response.content.decode())
    assert api_key_authenticate(token).rotated_from_id == key.pk
    assert api_key_authenticate(old) == key, "the old key must remain valid for a day"
    assert token not in page(operator, change_path("accounts_apikey", key.pk))


def test_the_page_of_a_job_links_to_its_batch(operator: Client, world: World) -> None:
    html = page(operator, change_path("jobs_job", world.batch.job_id))

    assert change_path("batches_batch", world.batch.pk) in html


def test_a_quote_whose_pilot_has_ended_is_not_shown_as_measuring(operator: Client, world: World) -> None:
    quote = world.quote
    assert quote.pilot is not None
    Batch.objects.filter(pk=quote.pilot.pk).update(status=Batch.Status.CANCELLED)

    page(operator, change_path("quotes_quote", quote.pk))

    quote.refresh_from_db()
    assert quote.status == "failed", "the pilot was cancelled before it had an answer"


def test_a_distillation_is_shown_and_cancelled(operator: Client, organization: Organization) -> None:
    made = World(organization).distillation

    assert made.batch_id in page(operator, change_path("distillations_distillation", made.pk))
    press(operator, "distillations_distillation", made.pk, "cancel")
    assert Job.objects.get(pk=made.batch.job_id).cancel_requested_at is not None


def test_an_adapter_that_is_served_cannot_be_deleted(operator: Client, organization: Organization) -> None:
    world = World(organization)
    world.deployment.adapters.add(world.adapter)

    assert world.deployment.name in page(operator, change_path("adapters_adapter", world.adapter.pk))
    press(operator, "adapters_adapter", world.adapter.pk, "remove")
    assert Adapter.objects.exists()
    world.deployment.adapters.clear()
    press(operator, "adapters_adapter", world.adapter.pk, "remove")
    assert not Adapter.objects.exists()


def test_the_page_of_a_rollout_shows_its_figures_and_its_cancellation(
    operator: Client, organization: Organization
) -> None:
    rollout = World(organization).rollout
    figures = {"num_requests": 1234, "num_failed": 0, "error_rate": 0.0, "acceptance_length": 2.5}
    Rollout.objects.update(figures={"canary": figures, "stable": figures})

    assert "1,234" in page(operator, change_path("rollouts_rollout", rollout.pk))
    press(operator, "rollouts_rollout", rollout.pk, "cancel")
    rollout.refresh_from_db()
    assert rollout.status == Rollout.Status.ROLLED_BACK
    assert "It was cancelled." in page(operator, change_path("rollouts_rollout", rollout.pk))


def test_the_page_of_a_rollout_shows_the_gates_and_the_evidence(operator: Client, organization: Organization) -> None:
    rollout = World(organization).rollout
    stable, candidate = (Evidence(num_requests=number, num_different=1) for number in (4321, 1234))
    terms = Terms.of(rollout)
    gates = gates_of(candidate, stable, terms, compares_answers=True)
    for phase in ("trial", "watch"):
        decision = decide(candidate, gates, terms)
        verdict = verdict_of(rollout, phase=phase, candidate=candidate, stable=stable, gates=gates, decision=decision)
        Rollout.objects.update(**{phase: verdict})

    shown = page(operator, change_path("rollouts_rollout", rollout.pk))

    for text in ("equality", "failed", "1,234", "4,321", "not comparable"):
        assert text in shown
