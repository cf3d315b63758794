"""The two measuring commands, on a tiny random model."""

import json
from pathlib import Path

import pytest

from benchmarks import decode, equality
from benchmarks.decode import acceptance
from benchmarks.equality import compare, first_difference
from benchmarks.workload import Prompt
from engine.request import Completion, FinishReason, SpeculationStats
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def prompts_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {
            "custom_id": f"row-{i}",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": text}]},
        }
        for i, text in enumerate(("abc abc abc", "one two one two", "x"))
    ]
    rows.append({"custom_id": "row-3", "url": "/v1/completions", "body": {"prompt": "plain text"}})
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("left", "right", "position"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1,), 1), ((), (5,), 0)],
)
def test_the_first_difference_is_found(left: tuple[int, ...], right: tuple[int, ...], position: int | None) -> None:
    assert first_difference(left, right) == position


def test_a_divergence_is_named_with_its_position() -> None:
    result = compare([Prompt("a", (1,)), Prompt("b", (1,))], [(1, 2, 3), (4,)], [(1, 2, 9), (4,)])

    assert result == {
        "prompts": 2,
        "equal": 1,
        "first_divergence": [{"custom_id": "a", "position": 2}],
        "tokens": 4,
    }


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_equality_prints_one_line_a_drafter(
    model_dir: Path, prompts_path: Path, temperature: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "24", "--batch-size", "3"]
    drafters = ["--drafter", "ngram", "--drafter", "none", "--plain-batch-size", "1"]

    code = equality.main([*common, *drafters, "--temperature", temperature, "--seed", "7"])

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [(line["drafter"], line["prompts"], line["equal"], line["first_divergence"]) for line in lines] == [
        ("ngram", 4, 4, []),
        ("none", 4, 4, []),
    ]


def test_decode_prints_speed_acceptance_and_phases(
    model_dir: Path, prompts_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "24", "--batch-size", "2"]

    assert decode.main([*arguments, "--drafter", "ngram", "--limit", "3"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["prompts"] == 3
    assert result["tokens_per_second"] > 0
    assert result["acceptance_length"] >= 1
    assert set(result["phase_seconds"]) == {"prefill", "draft", "verify", "sample", "host"}
    assert sum(result["phase_seconds"].values()) <= result["seconds"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has no rows"),
        ('{"custom_id": "a"}\n', "line 1"),
        ('{"custom_id": "a", "body": {"messages": []}}\n', "line 1"),
        ("not json\n", "line 1"),
    ],
)
def test_bad_prompts_are_refused_with_their_line(
    model_dir: Path, tmp_path: Path, lines: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(lines)

    code = decode.main(["--model", str(model_dir), "--prompts", str(path), "--max-tokens", "4", "--drafter", "none"])

    assert code == 2
    assert message in capsys.readouterr().err


def test_acceptance_is_counted_over_all_passes() -> None:
    """Two passes that kept 0 and 2 drafted tokens in one answer, one that kept 1 in the other."""
    first, second = SpeculationStats(), SpeculationStats()
    first.record(drafted=3, accepted=0)
    first.record(drafted=3, accepted=2)
    second.record(drafted=3, accepted=1)
    completions = [Completion(str(i), (1,), None, FinishReason.STOP, stats) for i, stats in enumerate((first, second))]

    length, rates = acceptance(completions)

    assert length == pytest.approx(2.0)
    assert rates == pytest.approx([2 / 3, 1 / 3])
