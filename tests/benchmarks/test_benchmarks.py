"""The benchmarks `decode`, `equality` and `audit`, run with a tiny random model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import audit, decode, equality
from benchmarks.decode import acceptance
from benchmarks.equality import compare, first_difference
from benchmarks.shapes import as_chain, as_tree
from benchmarks.workload import Prompt, WorkloadError, read_prompts, speculator_kind
from engine.draft import Draft
from engine.generate import generate
from engine.loop import Engine
from engine.request import Completion, FinishReason, Request, SpeculationStats
from engine.tokenizer import Tokenizer
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
def test_the_first_difference_of_two_answers_is_found(
    left: tuple[int, ...], right: tuple[int, ...], position: int | None
) -> None:
    assert first_difference(left, right) == position


def completion(*token_ids: int) -> Completion:
    return Completion("0", token_ids, None, FinishReason.STOP, SpeculationStats(num_accepted_draft_tokens=1))


def test_a_comparison_lists_each_different_answer_with_the_position_of_its_first_difference() -> None:
    prompts = [Prompt("a", (1,)), Prompt("b", (1,))]

    result = compare(prompts, [completion(1, 2, 3), completion(4)], [completion(1, 2, 9), completion(4)])

    assert result == {
        "prompts": 2,
        "equal": 1,
        "first_divergence": [{"custom_id": "a", "position": 2}],
        "tokens": 4,
        "drafted": 0,
        "accepted": 2,
    }


def test_every_drafter_draft_shape_and_batch_size_is_compared_with_the_plain_answers(
    model_dir: Path, prompts_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "24", "--max-seq-len", "256"]
    sizes = ["--batched-prompts", "4", "--single-prompts", "2", "--sampling", "top-p 0.9"]

    code = equality.main([*common, *sizes])

    *arms, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert summary == {"arms": 8, "answers": 24, "different": 0}
    assert {(arm["drafter"], arm["shape"], arm["batch_size"], arm["prompts"]) for arm in arms} == {
        (drafter, shape, size, prompts)
        for drafter in ("ngram", "suffix")
        for shape in ("chain", "tree")
        for size, prompts in ((16, 4), (1, 2))
    }
    assert sum(arm["drafted"] for arm in arms) > 0


def test_the_equality_benchmark_fails_if_answers_differ(
    model_dir: Path, prompts_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality, "generate", changing_the_first_answer(generate))
    common = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "8", "--max-seq-len", "256"]
    few_arms = ["--batched-prompts", "2", "--single-prompts", "1", "--sampling", "greedy", "--drafter", "ngram"]

    code = equality.main([*common, *few_arms])

    *arms, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 1
    assert summary["different"] == len(arms)
    assert arms[0]["first_divergence"] == [{"custom_id": "row-0", "position": 0}]


def changing_the_first_answer(original: Callable[..., list[Completion]]) -> Callable[..., list[Completion]]:
    """Returns `generate` with an error: the first answer of every engine with a drafter has a wrong first token."""

    def changed(engine: Engine, requests: list[Request]) -> list[Completion]:
        first, *rest = original(engine, requests)
        if engine.drafter.name != "none":
            first = replace(first, token_ids=(first.token_ids[0] + 1, *first.token_ids[1:]))
        return [first, *rest]

    return changed


def test_as_chain_keeps_the_likeliest_path_and_as_tree_adds_siblings() -> None:
    draft = Draft(tokens=(5, 6, 7), parents=(-1, 0, 0), survival=(0.9, 0.3, 0.5))  # 6 and 7 follow 5

    assert as_chain(draft) == Draft((5, 7), (-1, 0), (0.9, 0.5))
    # Each node of the chain gets a sibling with the next token id and half the survival: 6 beside 5, and 8 beside 7.
    assert as_tree(draft) == Draft((5, 6, 7, 6, 8), (-1, 0, 0, -1, 0), (0.9, 0.3, 0.5, 0.45, 0.25))


def test_the_decoding_benchmark_prints_speed_acceptance_length_and_times_of_phases(
    model_dir: Path, prompts_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "24", "--batch-size", "2"]

    assert decode.main([*arguments, "--drafter", "ngram", "--limit", "3"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["prompts"] == 3
    assert result["tokens_per_second"] > 0
    assert result["acceptance_length"] >= 1
    assert set(result["phase_seconds"]) == {"prefill", "draft", "verify", "sample", "host"}
    # The phases are parts of the whole time; each is rounded to a millisecond.
    assert sum(result["phase_seconds"].values()) < result["seconds"] + 0.004


def test_the_audit_benchmark_fails_if_an_audit_is_not_equal(
    model_dir: Path, prompts_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--model", str(model_dir), "--prompts", str(prompts_path), "--max-tokens", "20", "--count", "3"]
    assert audit.main(command) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(result["sampling"], result["answers"], result["equal"]) for result in results] == [
        (name, 3, 3) for name in audit.SAMPLINGS
    ]
    assert all(result["ratio"] > 0 for result in results)

    seeds = iter(range(1000))  # each request gets a different seed every time it runs
    monkeypatch.setattr(
        audit,
        "generate",
        lambda engine, requests: generate(
            engine, [replace(r, sampling=replace(r.sampling, seed=next(seeds))) for r in requests]
        ),
    )
    assert audit.main(command) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has no rows"),
        ('{"custom_id": "a"}\n', "line 1"),
        ('{"custom_id": "a", "body": {"messages": []}}\n', "line 1"),
        ("not json\n", "line 1"),
    ],
)
def test_the_error_for_an_invalid_prompts_file_names_the_line(
    model_dir: Path, tmp_path: Path, lines: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(lines)

    code = decode.main(["--model", str(model_dir), "--prompts", str(path), "--max-tokens", "4", "--drafter", "none"])

    assert code == 2
    assert message in capsys.readouterr().err


def test_prompts_are_read_from_a_file_of_questions_or_generated(model_dir: Path, tmp_path: Path) -> None:
    tokenizer, path = Tokenizer.load(model_dir), tmp_path / "questions.jsonl"
    path.write_text('{"question": "How many?", "answer": "3"}\n')

    assert [prompt.custom_id for prompt in read_prompts(path, tokenizer, max_seq_len=4096, limit=5)] == ["line-1"]
    pytest.importorskip("reasoning_gym")
    assert len(read_prompts(None, tokenizer, max_seq_len=4096, limit=3)) == 3


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"medusa_num_heads": 4}, "medusa"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"speculators_model_type": "dspark"}, "block"),
        ({"speculators_model_type": "mtp"}, "mtp"),
        ({"architectures": ["LlamaForCausalLM"]}, "draft_model"),
    ],
)
def test_the_kind_of_a_speculator_is_read_from_its_config(tmp_path: Path, values: dict[str, object], kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))

    assert speculator_kind(tmp_path) == kind


def test_a_folder_without_a_speculator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="readable"):
        speculator_kind(tmp_path)


def test_the_acceptance_length_is_the_mean_over_the_passes_of_all_answers() -> None:
    """The passes of the first answer accept 0 and 2 drafted tokens, and the one pass of the second accepts 1."""
    first, second = SpeculationStats(), SpeculationStats()
    first.record(drafted=3, accepted=0)
    first.record(drafted=3, accepted=2)
    second.record(drafted=3, accepted=1)
    completions = [Completion(str(i), (1,), None, FinishReason.STOP, stats) for i, stats in enumerate((first, second))]

    length, rates = acceptance(completions)

    assert length == pytest.approx(2.0)
    assert rates == pytest.approx([2 / 3, 1 / 3])
