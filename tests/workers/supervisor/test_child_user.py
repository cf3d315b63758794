"""Children that run as the user of their organization."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from control.core.processes import engine_homes
from control.core.processes.engine_homes import engine_homes_limit
from control.core.settings.config import get_config
from control.queue.jobs.models import Job
from control.queue.jobs.state import Claim
from tests.workers.supervisor.test_child import SPEC
from workers.contracts import Finished, ShardDone, encode_event
from workers.supervisor.attempt import Attempt
from workers.supervisor.lease import Lease
from workers.supervisor.run_child import run_child

PYTHON = "/usr/bin/python3"  # every user can run it
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not Path(PYTHON).exists(),
    reason="only root on Linux can start a process as another user",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter. Other users may not enter the folder of pytest's `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_the_home_of_a_childs_user_is_not_deleted_before_the_child_ends(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_homes, "MEASURE_SECONDS", -60.0)
    limits = {"data_dir": folder / "data", "engine_uids": "61000-61009", "max_engine_homes_bytes": 0}
    settings.SLIPSTREAM = get_config().model_copy(update=limits)
    work = folder / "work"
    work.mkdir()
    events = [
        encode_event(ShardDone(shard_no=0, path=str(work), completed=1, failed=0, usage={})),
        encode_event(Finished(result={}, artifacts={})),
    ]
    script = folder / "child.py"
    script.write_text(
        "import os, tempfile\n"
        f"print({events[0]!r}, flush=True)\n"
        f"while not os.path.exists({str(folder / 'checked')!r}): pass\n"
        "tempfile.TemporaryFile().close()\n"  # in the user's home
        f"print({events[1]!r}, flush=True)\n"
    )
    script.chmod(0o644)
    monkeypatch.setattr("workers.supervisor.child._command", lambda: [PYTHON, str(script)])
    claim = Claim(job_id="job_1", organization_id="org_1", fence=1, worker="w", is_exhausted=False)
    attempt = Attempt(
        claim=claim,
        job=Job(),
        lease=Lease(claim),
        folder=work,
        log_path=folder / "child.log",
        stop=threading.Event(),
    )
    home = folder / "data" / "engine_homes" / "61000"

    def on_result(_: object) -> None:
        engine_homes_limit(settings.SLIPSTREAM)
        assert (home / "tmp").is_dir()
        (folder / "checked").touch()

    run_child(attempt, SPEC, on_result=on_result)

    engine_homes_limit(settings.SLIPSTREAM)
    assert not home.exists()
