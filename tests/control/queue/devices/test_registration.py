"""Workers register the devices of their machine, and renew the devices' rows with each heartbeat."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pydantic import ValidationError
from pytest_django import Settings

from control.core.settings.config import Config
from control.queue.devices.models import Device
from control.queue.devices.selectors import devices_present, is_free
from control.queue.devices.services import devices_register, devices_renew, devices_withdraw
from tests.control.queue.devices.helpers import GB, cpu, gpu, state

pytestmark = pytest.mark.django_db


def test_without_configuration_the_cpu_is_a_device_whose_memory_is_not_stated(settings: Settings) -> None:
    state(settings, device="cpu")

    devices_register()

    device = devices_present().get()
    assert (device.machine, device.kind, device.index, device.memory_bytes) == ("here", "cpu", 0, None)
    assert devices_present().filter(is_free()).exists()


@pytest.mark.parametrize(
    ("device", "visible", "index"),
    [("cuda", None, 0), ("cuda:1", None, 1), ("cuda", "3", 3), ("cuda:1", "2, 5", 5), ("cuda", "GPU-8932", 0)],
)
def test_a_gpu_is_numbered_as_on_its_machine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, index: int
) -> None:
    """Workers whose CUDA_VISIBLE_DEVICES differ register different devices."""
    state(settings, device=device)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    devices_register()

    assert Device.objects.values_list("kind", "index").get() == ("cuda", index)


def test_stated_devices_are_registered_with_their_model_memory_and_price(settings: Settings) -> None:
    state(settings, gpu(80, index=1, price_per_hour=2.5), cpu(16))

    devices_register()

    columns = ("kind", "index", "model", "memory_bytes", "hour_nanousd")
    assert list(Device.objects.values_list(*columns)) == [
        ("cpu", 0, "", 16 * GB, None),
        ("cuda", 1, "H100", 80 * GB, 2_500_000_000),
    ]


def test_a_second_worker_of_the_machine_renews_the_same_row(settings: Settings) -> None:
    state(settings, gpu(80))
    devices_register()
    before = Device.objects.get()
    Device.objects.update(lease_until=Now())

    state(settings, gpu(40))
    devices_renew()

    after = devices_present().get()
    assert (after.pk, after.memory_bytes) == (before.pk, 40 * GB)


def test_a_device_whose_row_is_not_renewed_is_not_present(settings: Settings) -> None:
    state(settings, gpu(80))
    devices_register()
    Device.objects.update(lease_until=Now() - timedelta(seconds=1))

    assert not devices_present().exists()


def test_the_devices_of_a_stopped_worker_are_not_present_and_those_of_other_machines_are(settings: Settings) -> None:
    state(settings, gpu(80), machine="there")
    devices_register()
    state(settings, gpu(80))
    devices_register()

    devices_withdraw()

    assert devices_present().get().machine == "there"


def test_devices_that_were_not_renewed_for_a_day_are_forgotten_when_a_worker_starts(settings: Settings) -> None:
    state(settings, gpu(80), machine="gone")
    devices_register()
    Device.objects.update(lease_until=Now() - timedelta(days=2))

    state(settings, gpu(80))
    devices_register()

    assert Device.objects.get().machine == "here"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"devices": [gpu(80), gpu(40)]}, "differ in kind or index"),
        ({"devices": [gpu(80)], "device": "cuda:1"}, "must have no number"),
        ({"devices": [{"kind": "cuda", "memory_bytes": 1, "colour": "red"}]}, "Extra inputs"),
    ],
)
def test_contradictory_statements_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Config(**values)  # type: ignore[arg-type]


def test_devices_are_stated_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_DEVICES", '[{"kind": "cuda", "index": 2, "memory_bytes": 80000000000}]')

    assert Config().devices == (gpu(80, index=2, model=""),)
