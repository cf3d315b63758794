"""A capacity plan states how many devices are needed at the measured speeds, and what was not measured."""

from typing import Any

import pytest
from django.test import Client

from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.workflows.evaluations.capacity import Load, NotMeasuredError, capacity_plan
from tests.control.factories import client_of
from tests.control.world import World

REPORT: dict[str, Any] = {
    "device": "cuda:0",
    "num_tokens": 1000,
    "prompts_held_out": 10,
    "price_per_gpu_hour": 2.0,
    "concurrencies": [
        {
            "concurrency": 1,
            "tokens_per_second_plain": 50.0,
            "tokens_per_second_speculative": 100.0,
            "acceptance_length": 2.0,
            "acceptance_length_interval": [1.6, 2.5],
        },
        {
            "concurrency": 16,
            "tokens_per_second_plain": 400.0,
            "tokens_per_second_speculative": 600.0,
            "acceptance_length": 2.0,
            "acceptance_length_interval": None,
        },
    ],
}


def plan(report: dict[str, Any] | None = None, **load: Any) -> Any:
    values = {"requests_per_second": 20.0, "utilisation": 0.5, **load}
    return capacity_plan(report or REPORT, Load(**values), speculator="spec_1")


def test_a_plan_has_the_devices_and_costs_of_both_arms() -> None:
    made = plan(concurrency=1)

    plain, speculative = made.arms
    # 20 requests per second of 100 tokens each need 2,000 tokens per second. At a utilisation of 0.5, a device makes
    # 25 tokens per second without the speculator, and 50 with it.
    assert (plain.devices, speculative.devices) == (80, 40)
    assert (plain.cost_per_month, speculative.cost_per_month) == (80 * 730 * 2, 40 * 730 * 2)
    assert speculative.requests_per_second_per_device == 0.5
    # the bounds of the acceptance length are 0.8 and 1.25 times its mean
    assert (speculative.devices_low, speculative.devices_high) == (32, 50)
    assert (speculative.cost_per_month_low, speculative.cost_per_month_high) == (32 * 1460, 50 * 1460)
    assert (plain.devices_low, plain.devices_high) == (None, None)
    assert (made.interval_from, made.is_extrapolated) == ("acceptance_length", False)


@pytest.mark.parametrize(("rate", "devices"), [(0.001, 1), (4.0, 2), (4.001, 3)])
def test_devices_are_rounded_up(rate: float, devices: int) -> None:
    assert plan(requests_per_second=rate, utilisation=1.0, concurrency=16, output_tokens=200).arms[0].devices == devices


def test_the_interval_of_a_pair_of_arms_is_used_if_there_is_one() -> None:
    pairs = [
        {"concurrency": 1, "arm": "spec_1", "baseline": "none", "ratio": 2.0, "interval": [1.0, 4.0]},
        {"concurrency": 1, "arm": "spec_2", "baseline": "none", "ratio": 2.0, "interval": [9.0, 9.0]},
    ]

    made = plan({**REPORT, "pairs": pairs}, concurrency=1)

    assert (made.arms[1].devices_low, made.arms[1].devices, made.arms[1].devices_high) == (20, 40, 80)
    assert made.interval_from == "pairs"
    assert plan({**REPORT, "pairs": pairs}, concurrency=16).interval_from is None


@pytest.mark.parametrize("arm", ["plain", "speculative"])
def test_a_measured_speed_of_zero_is_not_a_measurement(arm: str) -> None:
    point = {**REPORT["concurrencies"][0], f"tokens_per_second_{arm}": 0.0}

    with pytest.raises(NotMeasuredError, match="no tokens per second at concurrency 1") as refused:
        plan({**REPORT, "concurrencies": [point]})

    assert refused.value.param == "evaluation_id"


def test_an_interval_that_begins_at_zero_bounds_no_devices() -> None:
    point = {**REPORT["concurrencies"][0], "acceptance_length_interval": [0.0, 2.5]}
    pair = {"concurrency": 1, "arm": "spec_1", "baseline": "none", "interval": [0.0, 1.0]}

    made = plan({**REPORT, "concurrencies": [point], "pairs": [pair]})

    assert (made.interval_from, made.arms[1].devices_low, made.arms[1].devices_high) == (None, None, None)


def test_the_default_is_the_highest_evaluated_concurrency_and_the_evaluated_length() -> None:
    made = plan()

    assert (made.concurrency, made.output_tokens) == (16, 100)


@pytest.mark.parametrize(
    ("load", "param"), [({"concurrency": 4}, "concurrency"), ({"device_kind": "cpu"}, "device_kind")]
)
def test_a_concurrency_or_device_kind_that_was_not_evaluated_is_refused(load: dict[str, Any], param: str) -> None:
    with pytest.raises(NotMeasuredError) as refused:
        plan(**load)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("load", "extrapolated"),
    [
        ({"output_tokens": 200}, False),
        ({"output_tokens": 50}, False),
        ({"output_tokens": 201}, True),
        ({"output_tokens": 49}, True),
        ({"input_tokens": 10}, True),
    ],
)
def test_lengths_that_were_not_evaluated_mark_a_plan_as_extrapolated(load: dict[str, Any], extrapolated: bool) -> None:
    made = plan(**load)

    assert made.is_extrapolated is extrapolated
    assert bool(made.extrapolated) is extrapolated


def test_without_a_price_there_are_devices_but_no_costs() -> None:
    made = plan({**REPORT, "price_per_gpu_hour": None})

    assert made.arms[1].devices > 0
    assert made.arms[1].cost_per_month is None
    assert plan(price_per_device_hour=3.0).arms[1].cost_per_month > 0


@pytest.fixture
def path(organization: Organization) -> str:
    evaluation = World(organization).evaluation
    Job.objects.filter(pk=evaluation.job_id).update(status=Job.Status.SUCCEEDED, result=REPORT)
    return f"/v1/evaluations/{evaluation.pk}/capacity"


def test_a_plan_is_computed_from_the_report_of_a_finished_evaluation(client: Client, path: str) -> None:
    query = {"requests_per_second": "20", "utilisation": "0.5", "concurrency": "1", "price_per_device_hour": "1"}

    made = client.get(path, query).json()

    assert made["object"] == "capacity_plan"
    assert [(arm["arm"], arm["devices"], arm["cost_per_month"]) for arm in made["arms"]] == [
        ("plain", 80, 80 * 730),
        ("speculative", 40, 40 * 730),
    ]
    assert (made["device"], made["is_extrapolated"], made["extrapolated"]) == ("cuda:0", False, [])


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ({}, "missing_required_parameter", "requests_per_second"),
        ({"requests_per_second": "0"}, "invalid_value", "requests_per_second"),
        ({"requests_per_second": "nan"}, "invalid_value", "requests_per_second"),
        ({"requests_per_second": "1", "utilisation": "1.1"}, "invalid_value", "utilisation"),
        ({"requests_per_second": "1", "concurrency": "1.5"}, "invalid_value", "concurrency"),
        ({"requests_per_second": "1", "concurrency": "2"}, "not_measured", "concurrency"),
        ({"requests_per_second": "1", "device_kind": "tpu"}, "not_measured", "device_kind"),
    ],
)
def test_an_impossible_query_is_refused(
    client: Client, path: str, query: dict[str, str], code: str, param: str
) -> None:
    response = client.get(path, query)

    assert response.status_code == 400
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)


def test_an_unfinished_evaluation_and_an_evaluation_of_another_organization_have_no_plan(
    client: Client, path: str, other_organization: Organization
) -> None:
    query = {"requests_per_second": "1"}
    assert client_of(other_organization).get(path, query).status_code == 404

    Job.objects.update(status=Job.Status.RUNNING)

    refused = client.get(path, query)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "evaluation_not_finished")
