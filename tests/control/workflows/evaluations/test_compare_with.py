"""Speculators that a request names as further arms cannot be deleted until the evaluation has ended."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel, BaseSpeculator, Speculator
from control.models.engines.planning import Workload, engine_plan
from control.models.engines.schemas import EngineOptions, EnginePlan
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.workflows.evaluations import services
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.requests import CREATE_EVALUATION
from control.workflows.evaluations.services import evaluation_finish
from tests.control.factories import chat_row, client_of, make_base_model, make_file
from tests.control.operations.console.support import change_path, operator_client, page
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.workers.supervisor.test_truncation import spec_of
from workers.contracts import ComparedArm, EvaluationSpec
from workers.supervisor import evaluation as handler

REPORT = {"prompts_held_out": 3, "outputs_equal": 3, "speedup": 1.5}
ARMS = {"arms": [{"name": "none"}], "pairs": [{"ratio": 1.5}]}
LATENCY = {"p50": 0.25, "p95": 0.5, "p99": 0.75}


@pytest.fixture
def model(db: None) -> BaseModel:
    return make_base_model("m")


@pytest.fixture
def first(model: BaseModel, organization: Organization) -> Speculator:
    return make_speculator(model, organization, name="first", storage_prefix="speculators/first")


@pytest.fixture
def second(model: BaseModel, organization: Organization) -> Speculator:
    return make_speculator(model, organization, name="second", kind="eagle3", storage_prefix="speculators/second")


@pytest.fixture
def base(model: BaseModel) -> BaseSpeculator:
    return BaseSpeculator.objects.create(
        base_model=model, name="general", version=1, kind="eagle3", target_revision=model.revision, storage_prefix="b"
    )


def post(client: Client, speculator: Speculator, *named: str, status: int = 201, **body: Any) -> dict[str, Any]:
    prompts = make_file(speculator.organization, [chat_row(f"row-{number}") for number in range(3)])
    request = {"speculator_id": speculator.pk, "prompts_file": prompts.pk, "compare_with": named, **body}
    response = client.post("/v1/evaluations", request, content_type="application/json")
    assert response.status_code == status, response.content
    found: dict[str, Any] = response.json()
    return found


def refusal(client: Client, speculator: Speculator, *named: str, status: int) -> tuple[str, str, str]:
    error = post(client, speculator, *named, status=status)["error"]
    assert not Job.objects.exists()
    return error["code"], error["param"], error["message"]


def test_an_evaluation_names_its_further_arms_in_the_given_order(
    client: Client, organization: Organization, first: Speculator, second: Speculator, base: BaseSpeculator
) -> None:
    made = post(client, first, "ngram", base.pk, second.pk, "suffix")

    use = Speculator.objects.get(organization=organization, base_speculator=base)
    assert made["compare_with"] == ["ngram", use.pk, second.pk, "suffix"]
    params = Job.objects.get(pk=made["job_id"]).params
    assert params["compared"] == {use.pk: "eagle3+suffix", second.pk: "eagle3+suffix"}
    assert client.get(f"/v1/evaluations/{made['id']}").json() == made


def test_an_evaluation_without_further_arms_has_none(client: Client, first: Speculator) -> None:
    made = post(client, first)
    params = Job.objects.get(pk=made["job_id"]).params
    assert (made["compare_with"], params["compare_with"], params["compared"]) == ([], [], {})


def test_an_arm_that_the_evaluation_already_has_is_refused(
    client: Client, first: Speculator, second: Speculator, base: BaseSpeculator
) -> None:
    for named, place in (
        ((first.pk,), 0),
        ((second.pk, "ngram", second.pk), 2),
        (("suffix", "suffix"), 1),
        ((base.pk, base.pk), 1),
    ):
        code, param, _ = refusal(client, first, *named, status=400)
        assert (code, param) == ("duplicate_arm", f"compare_with.{place}")
    assert not Speculator.objects.filter(base_speculator=base).exists()


def test_a_base_speculator_and_its_use_are_one_arm(client: Client, first: Speculator, base: BaseSpeculator) -> None:
    use = post(client, first, base.pk)["compare_with"][0]

    response = post(client, first, base.pk, use, status=400)

    assert response["error"]["code"] == "duplicate_arm"


def test_more_than_four_further_arms_are_refused(client: Client, first: Speculator) -> None:
    _, param, message = refusal(client, first, *(f"spec_{number}" for number in range(5)), status=400)
    assert param == "compare_with"
    assert "at most 4" in message


def _of_another_model(speculator: Speculator) -> None:
    Speculator.objects.filter(pk=speculator.pk).update(base_model=make_base_model("other"))


def _of_another_revision(speculator: Speculator) -> None:
    Speculator.objects.filter(pk=speculator.pk).update(target_revision="1" * 64)


def _of_another_tokenizer(speculator: Speculator) -> None:
    texts = {"tokenizer_sha256": "a" * 64, "chat_template_sha256": "b" * 64}
    BaseModel.objects.filter(pk=speculator.base_model_id).update(texts=texts)
    Speculator.objects.filter(pk=speculator.pk).update(target_texts={**texts, "tokenizer_sha256": "c" * 64})


@pytest.mark.parametrize("change", [_of_another_model, _of_another_revision, _of_another_tokenizer])
def test_a_speculator_of_another_model_revision_or_tokenizer_is_refused(
    client: Client, first: Speculator, second: Speculator, change: Callable[[Speculator], None]
) -> None:
    change(second)
    code, param, _ = refusal(client, first, "ngram", second.pk, status=409)
    assert (code, param) == ("speculator_mismatch", "compare_with.1")


def test_a_speculator_that_is_not_ready_is_refused(client: Client, first: Speculator, second: Speculator) -> None:
    Speculator.objects.filter(pk=second.pk).update(status="training")
    code, param, _ = refusal(client, first, second.pk, status=409)
    assert (code, param) == ("speculator_not_ready", "compare_with.0")


@pytest.mark.parametrize("adapted", ["first", "second"])
def test_a_speculator_with_an_adapter_is_compared_only_with_drafters_that_need_no_speculator(
    client: Client, first: Speculator, second: Speculator, adapted: str
) -> None:
    Speculator.objects.filter(name=adapted).update(kind="turbo_lora")
    code, param, message = refusal(client, first, second.pk, status=400)
    assert (code, param) == ("adapter_not_comparable", "compare_with.0")
    assert (first if adapted == "first" else second).pk in message
    post(client, first, "ngram", "suffix")


def test_the_speculator_of_another_organization_or_project_is_refused_like_an_unknown_id(
    client: Client, organization: Organization, other_organization: Organization, model: BaseModel, first: Speculator
) -> None:
    project, other_project = (project_create(organization=organization, name=name) for name in "ab")
    foreign = make_speculator(model, other_organization)
    of_other_project = make_speculator(model, organization, name="other", project=other_project)
    own = make_speculator(model, organization, name="own", project=project)
    project_client = client_of(organization, project=project)

    for caller, evaluated, named in (
        (client, first, foreign), (project_client, own, of_other_project), (project_client, own, first)
    ):  # fmt: skip
        code, param, message = refusal(caller, evaluated, named.pk, status=404)
        unknown = refusal(caller, evaluated, "spec_unknown", status=404)
        assert (code, param, message.replace(named.pk, "spec_unknown")) == unknown
        assert code == "speculator_not_found"


def test_a_speculator_cannot_be_deleted_until_the_evaluation_that_compares_it_has_ended(
    client: Client, first: Speculator, second: Speculator, base: BaseSpeculator
) -> None:
    made = post(client, first, second.pk, base.pk)
    arms = [f"/v1/speculators/{identity}" for identity in made["compare_with"]]

    refused = [client.delete(path) for path in arms]
    Job.objects.update(status="succeeded")
    deleted = [client.delete(path).status_code for path in arms]

    assert [(each.status_code, each.json()["error"]["code"]) for each in refused] == [(409, "speculator_in_use")] * 2
    assert deleted == [200, 200]


def test_an_arm_that_is_deleted_while_the_request_is_checked_is_refused(
    client: Client, first: Speculator, second: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_after(options: EngineOptions, workload: Workload) -> EnginePlan:
        planned = engine_plan(options, workload)
        assert client.delete(f"/v1/speculators/{second.pk}").status_code == 200
        return planned

    monkeypatch.setattr(services, "engine_plan", delete_after)
    code, _, _ = refusal(client, first, second.pk, status=409)
    assert code == "speculator_not_ready"


def store_weights(folder: Path, speculator: Speculator, size: int) -> None:
    path = folder / f"{speculator.name}.safetensors"
    path.write_bytes(bytes(size))
    get_storage().put_file(f"{speculator.storage_prefix}/model.safetensors", path)


def test_the_child_gets_the_drafters_and_staged_files_of_all_arms(
    client: Client, first: Speculator, second: Speculator, tmp_path: Path
) -> None:
    for size, speculator in ((1, first), (2, second)):
        store_weights(tmp_path, speculator, size)
    made = post(client, first, "suffix", second.pk, "ngram")

    spec = spec_of(Job.objects.get(pk=made["job_id"]), handler, handler.EvaluationHandler(), tmp_path / "attempt")

    assert isinstance(spec, EvaluationSpec)
    folder = str(tmp_path / "attempt" / "further" / second.pk)
    assert (spec.speculator_name, spec.reports_arms) == (first.pk, True)
    assert spec.compare_with == (  # suffix decoding is an arm of every evaluation
        ComparedArm(name=second.pk, drafter="eagle3+suffix", speculator_dir=folder),
        ComparedArm(name="ngram", drafter="ngram"),
    )
    assert (Path(folder) / "model.safetensors").stat().st_size == 2


def test_the_child_of_an_evaluation_that_an_earlier_release_queued_has_no_further_arms(
    client: Client, first: Speculator, tmp_path: Path
) -> None:
    store_weights(tmp_path, first, 1)
    job = Job.objects.get(pk=post(client, first)["job_id"])
    Job.objects.update(params={n: v for n, v in job.params.items() if n not in ("compare_with", "compared")})

    spec = spec_of(job, handler, handler.EvaluationHandler(), tmp_path / "attempt")

    assert isinstance(spec, EvaluationSpec)
    assert (spec.compare_with, spec.reports_arms) == ((), False)


def test_only_the_evaluation_shows_the_figures_of_other_arms(
    client: Client, first: Speculator, second: Speculator
) -> None:
    """A key of the first speculator's project may not see the second speculator."""
    made = post(client, first, second.pk)
    evaluation = Evaluation.objects.get(pk=made["id"])

    evaluation_finish(evaluation=evaluation, report=REPORT | ARMS, evidence=make_evidence(), plots_prefix="e")
    Job.objects.update(status="succeeded", result=REPORT | ARMS)

    assert client.get(f"/v1/evaluations/{made['id']}").json()["report"] == REPORT | ARMS
    assert client.get(f"/v1/speculators/{first.pk}").json()["report"] == REPORT
    assert client.get(f"/v1/speculators/{second.pk}").json()["report"] == {}


def measured_arm(name: str, speeds: dict[int, float]) -> dict[str, Any]:
    points = [
        {
            "concurrency": concurrency,
            "tokens_per_second": speed,
            "acceptance_length": 2.125,
            "acceptance_length_interval": [2.0, 2.25],
            "request_latency_seconds": LATENCY,
            "time_to_first_token_seconds": LATENCY,
            "inter_token_latency_seconds": None,
        }
        for concurrency, speed in speeds.items()
    ]
    return {"name": name, "drafter": "d", "outputs_equal": 2, "concurrencies": points}


def test_the_console_shows_the_arms_and_the_ratio_of_each_pair(
    client: Client, first: Speculator, second: Speculator
) -> None:
    made = post(client, first, second.pk)
    arms = [measured_arm("none", {1: 10.5, 4: 30.5}), measured_arm(second.pk, {1: 21.5, 4: 61.5})]
    pair = {"concurrency": 4, "arm": second.pk, "baseline": "none", "ratio": 2.016, "interval": [1.75, 2.25]}
    Job.objects.update(status="succeeded", result={**REPORT, "arms": arms, "pairs": [pair]})

    text = page(operator_client(), change_path("evaluations_evaluation", made["id"]))

    rows = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)]
    times = ["250", "/", "500", "/", "750", "250", "/", "500", "/", "750", "–"]
    first_rows = [row for row in rows if row[:2] in (["1", "plain"], ["1", "second"], ["4", "plain"])]
    assert first_rows == [
        [*["1", "plain", "decoding", "10.5", "2.125", "2", "of", "3"], *times],
        [*["1", "second", "v1", "21.5", "2.125", "2", "of", "3"], *times],
        [*["4", "plain", "decoding", "30.5", "2.125", "2", "of", "3"], *times],
    ]
    assert ["4", "second", "v1", "plain", "decoding", "2.016×", "1.75", "to", "2.25"] in rows
    assert change_path("catalog_speculator", second.pk) in text


def test_an_old_report_without_arms_is_still_shown(client: Client, first: Speculator) -> None:
    made = post(client, first)
    Evaluation.objects.update(settings={"concurrencies": [1], "repeats": 1})
    Job.objects.update(status="succeeded", result=REPORT)

    shown = client.get(f"/v1/evaluations/{made['id']}").json()
    text = page(operator_client(), change_path("evaluations_evaluation", made["id"]))

    assert (shown["report"], shown["compare_with"]) == (REPORT, [])
    assert "speedup" in text
    assert "speed of each pair" not in text


def test_the_console_offers_speculators_and_drafters_as_arms(
    organization: Organization, first: Speculator, second: Speculator
) -> None:
    choices = CREATE_EVALUATION.choices(organization)["compare_with"]
    assert [value for value, _ in choices][:2] == ["suffix", "ngram"]
    assert {first.pk, second.pk} <= {value for value, _ in choices}
