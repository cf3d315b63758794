"""Requests can ask for a kind or model of device with `hardware`, a name from GET /v1/hardware."""

from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import StatedDevice
from control.queue.devices.models import Device
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.pipelines.models import Pipeline
from tests.control.queue.devices.helpers import GB, cpu, gpu, state
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_evaluation, make_pipeline
from tests.control.workflows.test_engine_options import PATHS, body_of, give_sizes, plans_of, send
from tests.control.world import World, example_bodies


@pytest.fixture
def world(organization: Organization, settings: Settings) -> World:
    """An organization's objects, and three machines with different devices."""
    for machine, device in (("a", gpu(80, price_per_hour=2.5)), ("b", gpu(24, model="L4", price_per_hour=0.5))):
        state(settings, device, machine=machine)
        devices_register()
    state(settings, cpu(16), machine="c")
    devices_register()
    return World(organization)


def stored_hardware(path: str) -> str:
    if path == "/v1/deployments":
        return Deployment.objects.latest("pk").hardware
    return Job.objects.latest("pk").hardware


@pytest.mark.parametrize("path", PATHS)
def test_a_request_for_a_model_of_device_is_stored_and_shown(client: Client, world: World, path: str) -> None:
    made = send(client, path, body_of(world, path, hardware="L4")).json()

    assert made["hardware"] == "L4"
    assert client.get(f"{path}/{made['id']}").json()["hardware"] == "L4"
    assert stored_hardware(path) == "L4"


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_hardware_takes_any_device(client: Client, world: World, path: str) -> None:
    made = send(client, path, body_of(world, path)).json()

    assert made["hardware"] is None
    assert stored_hardware(path) == ""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("values", [{}, {"validate_only": True}])
def test_the_error_for_an_unknown_name_lists_the_names_that_are_present(
    client: Client, world: World, path: str, values: dict[str, Any]
) -> None:
    error = send(client, path, body_of(world, path, hardware="B200", **values)).json()["error"]

    assert (error["code"], error["param"]) == ("hardware_not_found", "hardware")
    assert "['H100', 'L4', 'cpu', 'cuda']" in error["message"]
    assert "'B200'" in error["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [("H100", [("cuda", "H100", 2.5)]), ("cuda", [("cuda", "H100", 2.5), ("cuda", "L4", 0.5)])],
)
def test_a_plan_is_for_the_memory_and_the_price_of_the_device_that_was_asked_for(
    client: Client, world: World, path: str, name: str, expected: list[tuple[str, str, float]]
) -> None:
    give_sizes(world)

    plans = plans_of(send(client, path, body_of(world, path, hardware=name, validate_only=True)).json())

    for plan in plans:
        devices = plan["devices"]
        assert [(each["device_kind"], each["hardware"], each["price_per_hour"]) for each in devices] == expected
        assert devices[0]["memory_bytes"] == int(0.95 * 80 * GB)


def test_a_model_that_does_not_fit_the_device_that_was_asked_for_is_refused(
    client: Client, world: World, settings: Settings
) -> None:
    give_sizes(world)
    state(settings, StatedDevice(kind="cuda", model="tiny", memory_bytes=GB // 10), machine="d")
    devices_register()

    answers = [
        send(client, "/v1/deployments", body_of(world, "/v1/deployments", hardware=name)) for name in ("tiny", "L4")
    ]

    assert [answer.status_code for answer in answers] == [400, 201]
    assert answers[0].json()["error"]["code"] == "does_not_fit"


def test_a_fine_tuning_job_asks_for_a_device_in_turbo(client: Client, world: World) -> None:
    body = example_bodies()["POST /v1/fine_tuning/jobs"].make(world)

    made = send(client, "/v1/fine_tuning/jobs", {**body, "turbo": {"hardware": "L4"}}).json()
    refused = send(client, "/v1/fine_tuning/jobs", {**body, "turbo": {"hardware": "B200"}}).json()["error"]

    assert made["turbo"]["hardware"] == "L4"
    assert Pipeline.objects.get(pk=made["turbo"]["pipeline_id"]).hardware == "L4"
    assert (refused["code"], refused["param"]) == ("hardware_not_found", "turbo.hardware")


def test_all_stages_of_a_pipeline_ask_for_its_device_even_if_it_has_disappeared_meanwhile(world: World) -> None:
    pipeline = make_pipeline(hardware="L4")
    Device.objects.all().delete()

    pipeline = end_evaluation(advance_to_stage("evaluate", pipeline))

    assert pipeline.batch is not None
    assert pipeline.training_job is not None
    assert pipeline.evaluation_job is not None
    assert pipeline.deployment is not None
    holders = (pipeline.batch.job, pipeline.training_job, pipeline.evaluation_job, pipeline.deployment)
    assert [holder.hardware for holder in holders] == ["L4"] * 4
