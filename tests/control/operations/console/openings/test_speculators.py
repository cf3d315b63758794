"""The page of a speculator begins with its gain, and shows examples of answers to members only."""

import json
from pathlib import Path

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.models.catalog.services import speculator_fail
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim_next, job_progress
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.evaluations.services import evaluation_finish, evaluation_start
from control.workflows.speculators.answer_examples import EXAMPLES_FILE, MAX_BYTES, answer_examples
from tests.control.factories import make_organization
from tests.control.operations.console.openings.support import opening, text_of
from tests.control.operations.console.support import change_path, operator_client
from tests.control.operations.console.test_members import sign_in
from tests.control.workflows.evaluations.evidence import EXAMPLE, make_evidence
from tests.control.workflows.evaluations.helpers import make_speculator
from tests.control.workflows.pipelines.helpers import advance_to_stage, make_pipeline

pytestmark = pytest.mark.django_db
TABLE = "catalog_speculator"


def point(concurrency: int, plain: float, speedup: float) -> dict[str, float]:
    return {
        "concurrency": concurrency,
        "speedup": speedup,
        "tokens_per_second_plain": plain,
        "tokens_per_second_speculative": plain * speedup,
    }


REPORT = {
    **point(1, 40.0, 1.75),
    "speedup_over_suffix": 1.25,
    "acceptance_length": 2.5,
    "acceptance_length_interval": [2.25, 2.75],
    "prompts_held_out": 200,
    "outputs_equal": 200,
    "acceptance_rate_per_position": [0.75, 0.5, 0.25],
    "concurrencies": [point(4, 100.0, 1.5), point(1, 40.0, 1.75)],
}


@pytest.fixture
def member(organization: Organization) -> Client:
    return sign_in(organization, "member")


def evaluated(organization: Organization, folder: Path, examples: object = (EXAMPLE,)) -> Speculator:
    """A speculator whose evaluation has ended."""
    speculator = make_speculator(organization)
    evaluation = evaluation_start(speculator=speculator, prompts=None, rows_key="rows", settings={}, memory_needed={})
    (folder / "file").write_text(json.dumps(examples))
    get_storage().put_file(f"plots/{EXAMPLES_FILE}", folder / "file")
    evaluation_finish(evaluation=evaluation, report=REPORT, evidence=make_evidence(), plots_prefix="plots")
    Job.objects.filter(pk=evaluation.job_id).update(status=Job.Status.SUCCEEDED)
    speculator.refresh_from_db()
    return speculator


def test_the_page_of_an_evaluated_speculator_begins_with_its_gain_its_plot_and_its_examples(
    member: Client, organization: Organization, tmp_path: Path
) -> None:
    html = opening(member, TABLE, evaluated(organization, tmp_path).pk)

    text = text_of(html)
    assert text.startswith("1.75× the speed of plain decoding, at concurrency 1 70 tokens per second instead of 40")
    assert "1.25× the speed of suffix decoding" in text
    assert "2.5 tokens per verification pass (95 %: 2.25 to 2.75)" in text
    assert "200 of 200 held-out answers are equal, token for token" in text
    assert "with this speculator: 70 at 1, 150 at 4" in html
    assert "suffix decoding alone:" not in html  # an arm that was not measured has no line
    assert [f'style="width: {percent}%"' in html for percent in ("75.0", "50.0", "25.0")] == [True] * 3
    assert 'In <mark class="console-accepted">the middle of </mark> …' in html
    assert "Where is &lt;Kassel&gt;?" in html
    assert 'data-live-active="no"' in html


def test_if_training_chose_the_kind_the_page_also_shows_the_kinds_that_were_not_chosen(
    member: Client, organization: Organization, tmp_path: Path
) -> None:
    speculator = evaluated(organization, tmp_path)
    figures = {"steps": 600, "elapsed_seconds": 30.0}
    candidates = [
        {"kind": "medusa", "acceptance_length": 2.5, "tokens_per_second": 70.0, **figures},
        {"kind": "eagle3", "acceptance_length": 3.25, "tokens_per_second": 64.5, **figures},
    ]
    failed = [{"kind": "mtp", "error": "out of memory"}]
    auto = {
        "candidates": candidates,
        "failed": failed,
        "plain_tokens_per_second": 40.0,
        "suffix_tokens_per_second": 60.0,
    }
    Speculator.objects.filter(pk=speculator.pk).update(training={"auto": auto})

    text = text_of(opening(member, TABLE, speculator.pk))

    assert "medusa (kept) 70 tokens per second, 2.5 tokens per verification pass, 600 steps" in text
    assert "eagle3 64.5 tokens per second, 3.25 tokens per verification pass, 600 steps" in text
    assert "mtp could not be trained: out of memory" in text
    assert "suffix decoding alone: 60 tokens per second" in text


def test_the_deploy_button_leads_to_a_form_that_deploys_the_speculator(
    member: Client, organization: Organization, tmp_path: Path
) -> None:
    speculator = evaluated(organization, tmp_path)
    path = reverse(f"admin:{TABLE}_deploy", args=[quote(speculator.pk)])
    assert f'href="{path}"' in opening(member, TABLE, speculator.pk)
    form = member.get(path).context["form"]

    response = member.post(path, {name: form[name].value() for name in form.fields if form[name].value()})

    deployment = Deployment.objects.get()
    assert (response.status_code, response.headers["Location"]) == (
        302, change_path("deployments_deployment", deployment.pk),
    )  # fmt: skip
    assert (deployment.speculator, deployment.base_model) == (speculator, speculator.base_model)


def test_a_member_who_may_not_create_deployments_sees_no_deploy_button(
    organization: Organization, tmp_path: Path
) -> None:
    speculator, viewer = evaluated(organization, tmp_path), sign_in(organization, "read_only")
    path = reverse(f"admin:{TABLE}_deploy", args=[quote(speculator.pk)])

    html = opening(viewer, TABLE, speculator.pk)

    assert "console-answer" in html
    assert path not in html
    assert viewer.post(path, {"name": "x"}).status_code == 403
    assert not Deployment.objects.exists()


def test_operators_see_the_figures_but_no_text_of_customers(organization: Organization, tmp_path: Path) -> None:
    html = opening(operator_client(), TABLE, evaluated(organization, tmp_path).pk)

    assert "1.75" in text_of(html)
    assert "the middle of" not in html
    assert "Kassel" not in html


def test_the_page_does_not_exist_for_members_of_other_organizations(organization: Organization, tmp_path: Path) -> None:
    speculator, stranger = evaluated(organization, tmp_path), sign_in(make_organization(), "owner")

    assert stranger.get(change_path(TABLE, speculator.pk)).status_code == 404
    assert stranger.get(reverse(f"admin:{TABLE}_deploy", args=[quote(speculator.pk)])).status_code == 404


def test_while_a_pipeline_trains_the_speculator_the_page_shows_the_progress(
    member: Client, organization: Organization
) -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline(organization))
    pipeline = advance_to_stage("train", make_pipeline(organization, name="second"))
    job_claim = job_claim_next(worker="w")
    while job_claim is not None and job_claim.job_id != pipeline.training_job_id:
        job_claim = job_claim_next(worker="w")
    assert job_claim is not None
    job_progress(claim=job_claim, done=30, total=120, unit="steps")

    html = opening(member, TABLE, pipeline.speculator_id)

    assert "30 / 120 steps" in html
    assert 'data-live-active="yes"' in html
    assert change_path("pipelines_pipeline", pipeline.pk) in html
    assert "console-button" not in html


def test_while_an_evaluation_runs_the_page_updates_itself(
    member: Client, organization: Organization, tmp_path: Path
) -> None:
    speculator = evaluated(organization, tmp_path)
    evaluation_start(speculator=speculator, prompts=None, rows_key="rows", settings={}, memory_needed={})

    html = opening(member, TABLE, speculator.pk)

    assert "An evaluation is queued." in html
    assert 'data-live-active="yes"' in html
    assert "1.75" in html  # the figures of the earlier evaluation stay


def test_the_page_says_whether_a_speculator_has_failed_is_deleted_or_was_not_evaluated(
    member: Client, organization: Organization
) -> None:
    unmeasured, deleted = make_speculator(organization), make_speculator(organization)
    Speculator.objects.filter(pk=deleted.pk).update(status="deleted")
    pipeline = advance_to_stage("train", make_pipeline(organization))
    assert pipeline.speculator is not None
    speculator_fail(speculator=pipeline.speculator)
    type(pipeline).objects.update(status="failed", error={"code": "bug", "message": "The loss is <NaN>."})

    assert "has not been evaluated yet" in opening(member, TABLE, unmeasured.pk)
    assert "The loss is &lt;NaN&gt;." in opening(member, TABLE, pipeline.speculator_id)
    html = opening(member, TABLE, deleted.pk)
    assert "It is deleted" in html
    assert "console-button" not in html


@pytest.mark.parametrize("stored", [[{"custom_id": 1}], {"not": "a list"}, [EXAMPLE | {"prompt": "x" * MAX_BYTES}]])
def test_invalid_and_oversized_examples_are_not_shown(
    organization: Organization, tmp_path: Path, stored: object
) -> None:
    assert answer_examples(evaluated(organization, tmp_path, stored)) == ()


def test_an_evaluation_of_an_earlier_release_has_no_examples(organization: Organization, tmp_path: Path) -> None:
    speculator = evaluated(organization, tmp_path)
    get_storage().delete(f"plots/{EXAMPLES_FILE}")

    assert answer_examples(speculator) == ()
