"""The interface of the child process: its events, its exit status and its standard output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.support import ROOT, chat_rows, end_of, read_lines, start_child, write_lines
from workers.contracts import BatchSpec, Event, Failed, Finished, ShardDone, ShardRange


def make_batch(folder: Path, model: Path, *, rows: int = 3) -> BatchSpec:
    return BatchSpec(
        job_id="job_0123",
        model_dir=str(model),
        model_name="tiny",
        input_path=str(write_lines(folder / "rows.jsonl", chat_rows(rows))),
        output_dir=str(folder / "output"),
        shards=(ShardRange(shard_no=0, row_from=0, row_to=rows),),
        drafter="none",
    )


Ended = tuple[int, list[Event], str]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Ended, Ended]:
    """Runs two jobs at the same time, of which the second has an empty folder as its model. Returns both results."""
    good, bad, empty = (tmp_path_factory.mktemp(name) for name in ("good", "bad", "empty"))
    children = start_child(make_batch(good, tiny_model), good), start_child(make_batch(bad, empty), bad)
    return end_of(children[0]), end_of(children[1])


def test_a_finished_job_exits_with_0_after_its_last_event(ended: tuple[Ended, Ended]) -> None:
    (status, events, _), _ = ended
    assert status == 0
    assert isinstance(events[-1], Finished)
    (shard,) = [event for event in events if isinstance(event, ShardDone)]
    assert [line["custom_id"] for line in read_lines(Path(shard.path))] == ["row-0", "row-1", "row-2"]


def test_a_model_that_cannot_be_loaded_is_a_user_config_failure_with_exit_status_1(ended: tuple[Ended, Ended]) -> None:
    _, (status, events, stderr) = ended
    assert status == 1
    (failed,) = events
    assert isinstance(failed, Failed)
    assert (failed.failure_class, failed.code) == ("user_config", "model_not_loadable")
    assert "Traceback" in stderr  # operators find the traceback in the job's log


def test_a_spec_of_an_unknown_kind_gives_a_failed_event_with_the_code_invalid_spec(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"kind": "dance"}))
    child = subprocess.run(
        [sys.executable, "-m", "workers.run", str(spec)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert child.returncode == 1
    assert json.loads(child.stdout)["code"] == "invalid_spec"


def test_output_that_is_not_an_event_goes_to_standard_error() -> None:
    script = (
        "import os, workers.run as run\n"
        "with run._events_only_stdout() as stream:\n"
        "    print('from python', flush=True)\n"
        "    os.write(1, b'from c\\n')\n"
        "    stream.write('event\\n')\n"
    )
    child = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert child.stdout == "event\n"
    assert child.stderr == "from python\nfrom c\n"
