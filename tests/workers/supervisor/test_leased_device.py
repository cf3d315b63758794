"""A child process is told the device as it sees it: with CUDA_VISIBLE_DEVICES set, `cuda:1` does not exist."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from control.core.settings.config import get_config
from control.queue.jobs.state import Claim
from tests.control.factories import make_job
from tests.control.workflows.pipelines.helpers import make_pipeline
from tests.source_tree import ROOT
from tests.workers.supervisor.test_truncation import spec_of
from workers.supervisor import batch
from workers.supervisor.attempt import Attempt
from workers.supervisor.lease import Lease

pytestmark = pytest.mark.django_db


def use(settings: Settings, **values: Any) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update=values)


@pytest.mark.parametrize(
    ("configured", "visible", "expected"),
    [
        ("cuda:1", None, "cuda:1"),
        ("cuda:1", "1", "cuda"),
        ("auto", "0", "auto"),
        ("auto", "", "cpu"),
        ("cuda:1", "", "cpu"),
        ("cpu", None, "cpu"),
    ],
)
def test_a_leased_device_is_the_only_one_that_the_child_sees(
    settings: Settings, tmp_path: Path, configured: str, visible: str | None, expected: str
) -> None:
    use(settings, device=configured)
    job = make_job()
    claim = Claim(
        job_id=job.pk,
        organization_id=job.organization_id,
        fence=1,
        worker="worker",
        is_exhausted=False,
        visible_devices=visible,
    )
    attempt = Attempt(
        claim=claim, job=job, lease=Lease(claim), folder=tmp_path, log_path=tmp_path / "log", stop=threading.Event()
    )

    assert attempt.device == expected


def test_the_spec_of_a_job_has_the_device_that_its_child_sees(settings: Settings, tmp_path: Path) -> None:
    use(settings, device="cuda:1")
    pipeline = make_pipeline(deploy=False)
    assert pipeline.batch is not None

    spec: Any = spec_of(pipeline.batch.job, batch, batch.BatchHandler(), tmp_path / "batch", visible_devices="1")

    assert spec.device == "cuda"


def test_no_handler_gives_a_child_the_configured_device() -> None:
    """The handlers of the other kinds of jobs build their specs alike."""
    sources = {path.name: path.read_text() for path in (ROOT / "workers" / "supervisor").glob("*.py")}
    assert [name for name, text in sources.items() if "get_config().device" in text] == ["attempt.py"]
    assert sum("device=attempt.device" in text for text in sources.values()) == 5
