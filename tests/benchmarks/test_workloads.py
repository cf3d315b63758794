"""The benchmark `workloads`: its prompts, and a run with a tiny random model."""

import json
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from benchmarks.workloads import __main__ as command
from benchmarks.workloads import generators
from benchmarks.workloads.generators import WORKLOADS, prompts
from tests.tiny_model import make_tiny_model


@pytest.mark.parametrize("workload", WORKLOADS)
def test_equal_seeds_give_equal_distinct_prompts_and_other_seeds_give_others(workload: str) -> None:
    first = prompts(workload, 60, seed=1)

    assert prompts(workload, 40, seed=1) == first[:40]
    assert len(set(first)) == 60
    assert len(set(prompts(workload, 60, seed=2)) - set(first)) > 30


@pytest.mark.parametrize("workload", ["extraction", "chat", "screening", "json"])
def test_the_prompts_of_a_workload_do_not_depend_on_the_day(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prompts(workload, 20, seed=1)

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Later":
            return cls(2031, 5, 4, tzinfo=tz)

    monkeypatch.setattr("faker.providers.date_time.datetime", Later)
    assert prompts(workload, 20, seed=1) == first


def test_too_few_distinct_prompts_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generators.WORKLOADS, "same", lambda seed: iter(["again"] * 1000))
    with pytest.raises(ValueError, match="fewer than 2 distinct prompts"):
        prompts("same", 2, seed=0)


@pytest.mark.wide
def test_the_command_trains_on_a_workload_and_compares_all_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = make_tiny_model(tmp_path / "model", max_position_embeddings=1024), tmp_path / "out"
    common = ["--model", str(model), "--folder", str(folder), "--workloads", "code", "--rows", "8", "--steps", "2"]

    assert command.main([*common, "--rounds", "1", "--max-tokens", "8"]) == 0

    lines = capsys.readouterr().out.splitlines()
    arms = [line.split(" | ")[1] for line in lines if line.startswith("| code")]
    assert arms == ["none", "suffix", "custom", "custom + suffix", "custom once"]
    assert all("8 of 8" in line for line in lines if line.startswith("| code"))
    samples = json.loads((folder / "results.json").read_text())["samples"]["code"]
    assert [sample["prompts"] for sample in samples] == [8] * 5


def test_the_prompts_of_the_measurement_are_not_those_of_the_training() -> None:
    new, known = command._prompts("code", 50, 10)

    assert not set(new) & set(known)
    assert command._prompts("code", 20, 10)[0] == new


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--workloads", "poems"], "must be some of extraction"), (["--adapt"], "--adapt needs --base")],
)
def test_wrong_arguments_are_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
