"""The GPU benchmark of decoding: its arithmetic, equal answers of the compared engines, and a dry run on the CPU."""

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import decode
from benchmarks.gpu import library_operations, plain, steps, suite, table
from benchmarks.gpu.goals import GOALS, Verdict, verdicts
from benchmarks.gpu.peak_rates import PeakRates
from benchmarks.gpu.shapes import SHAPES, make_model, pass_bytes, transformers_config
from benchmarks.gpu.speculation import predicted_speedup
from engine.config import ModelConfig
from engine.models.dense import Decoder
from kernels.attention import attention_reference
from kernels.linear import linear_reference
from tests.kernels.test_attention import make_rows
from tests.tiny_model import make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model("tiny", torch.float32, CPU, max_positions=256)


@pytest.mark.parametrize(("name", "gigabytes"), [("llama-3.2-1b", 2.47), ("llama-3.1-8b", 15.01), ("qwen3-8b", 15.14)])
def test_a_pass_without_context_reads_all_weights_except_the_input_embedding(name: str, gigabytes: float) -> None:
    config = ModelConfig.from_values(SHAPES[name])
    assert pass_bytes(config, 2, context=0, batch=1) / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_pass_bytes_include_keys_and_values_of_each_sequence() -> None:
    config = ModelConfig.from_values(SHAPES["llama-3.1-8b"])
    weights = pass_bytes(config, 2, context=0, batch=8)
    # Each token has keys and values (2) in 32 layers and 8 heads, each with 128 elements of 2 bytes: 131,072 bytes.
    assert pass_bytes(config, 2, context=8192, batch=8) - weights == 8 * 8192 * 131_072


def test_our_engine_and_the_engines_that_are_compared_give_equal_answers(model: Decoder) -> None:
    prompts = torch.randint(0, 96, (2, 11), generator=torch.Generator().manual_seed(3))
    shape = transformers_config("tiny")
    our_answers = plain.ours(model, prompts, 9)(9)
    assert plain.compiled_loop(model, shape, prompts, 9, compiled=False)(9) == our_answers
    assert plain.hugging_face(model, shape, prompts, compiled=False)(9) == our_answers


def test_the_decoding_rate_is_computed_from_the_difference_of_long_and_short_answers() -> None:
    assert plain.rate(8, 16, 144, short_seconds=1.5, long_seconds=3.5) == 8 * 128 / 2.0
    assert plain.rate(8, 16, 144, short_seconds=2.0, long_seconds=1.0) == 0.0


def test_agreement_is_the_share_of_tokens_before_the_first_difference() -> None:
    assert plain.agreement([(1, 2, 3, 4), (5, 6)], [(1, 2, 9, 4), (5, 6)]) == 4 / 6


def test_linear_and_attention_of_torch_agree_with_our_references() -> None:
    generator = torch.Generator().manual_seed(1)
    x, data, bias = (torch.randn(*shape, generator=generator) for shape in ((3, 8), (5, 8), (5,)))
    parts = library_operations.library_parts(x, data, None, bias)
    assert parts.bias is not None
    torch.testing.assert_close(parts.sums[0] + parts.bias, linear_reference(x, data, bias))

    q, k, v = (torch.randn(*shape, generator=generator) for shape in ((1, 4, 16), (9, 2, 16), (9, 2, 16)))
    rows = make_rows(torch.arange(9, dtype=torch.int32).view(1, -1), [7], [[]])
    torch.testing.assert_close(library_operations.library_attention(q, k, v, 7), attention_reference(q, k, v, rows))


def test_with_library_operations_replaces_our_operations_by_torchs_until_it_exits() -> None:
    operations = [
        ("kernels.cuda.decoder", "linear_parts"),
        ("kernels.cuda.decoder", "attention"),
        ("engine.graph_decoding.sampling", "sample_rows"),
    ]

    def current() -> list[Any]:
        return [getattr(import_module(module), name) for module, name in operations]

    originals = current()
    with library_operations.with_library_operations(4) as num_calls:
        products, *others = current()
        products(torch.ones(1, 2), torch.ones(3, 2))
        assert num_calls == {"products": 1}
        assert not set(originals) & {products, *others}
    assert current() == originals


def test_a_step_is_compared_with_the_plain_step_that_has_the_same_context(model: Decoder) -> None:
    measured_steps = [
        steps.Step(context=context, nodes=nodes, verify_seconds=seconds, host_seconds=0.0)
        for context, nodes, seconds in ((10, 0, 2.0), (10, 4, 3.0), (20, 0, 4.0), (20, 4, 4.0))
    ]
    # At this bandwidth, reading the first step's bytes takes one second. The step took two seconds: its share is 0.5.
    bandwidth = pass_bytes(model.config, 4, context=10, batch=1)
    rows = steps.with_shares(measured_steps, model, PeakRates(copy_bytes_per_second=bandwidth, flops_per_second=1.0))
    assert [row["over_plain"] for row in rows] == [1.0, 1.5, 1.0, 1.0]
    assert rows[0]["share_of_bandwidth"] == 0.5
    assert "share_of_bandwidth" not in rows[1]


def test_a_speedup_is_predicted_from_acceptance_and_step_times() -> None:
    assert predicted_speedup(3.0, plain=2.0, verify=2.5, draft=0.5) == 2.0


def test_a_goal_fails_if_its_value_is_beyond_the_bound_or_nan_and_is_not_measured_without_a_value() -> None:
    steps_of_8b = [
        {"context": 512, "nodes": 0, "share_of_bandwidth": 0.86},
        {"context": 2048, "nodes": 16, "over_plain": 1.09},
    ]
    found = verdicts({"decode-llama-3.1-8b": {"steps": steps_of_8b}})
    assert [verdict.status for verdict in found] == ["PASS", "NOT MEASURED", "FAIL", *["NOT MEASURED"] * 4]
    assert Verdict(GOALS[0], float("nan")).status == "FAIL"


def test_kernel_results_decide_the_goals_on_attention_bandwidth_and_on_the_number_of_failed_checks() -> None:
    case: dict[str, Any] = {
        "shape": "llama-3.1-8b heads, 32768 keys, 16 rows",
        "passed": True,
        "work": {"num_bytes": 71},
        "seconds": {"ours": {"median": 1.0}},
    }
    results = {"kernels": {"cases": [case], "rows": [], "ceilings": {"copy_bytes_per_second": 100.0}}}
    assert [verdict.status for verdict in verdicts(results)][-2:] == ["PASS", "PASS"]
    case |= {"passed": False, "seconds": {"ours": {"median": 1.1}}}
    assert [verdict.status for verdict in verdicts(results)][-2:] == ["FAIL", "FAIL"]


def test_the_results_list_failed_sections_and_sections_left_out_for_lack_of_time() -> None:
    saved: list[dict[str, Any]] = []

    def broken() -> None:
        raise RuntimeError("out of memory")

    deadline = time.monotonic() + 1000  # never reached
    passed = suite.run_sections(
        [("a", lambda: 1), ("b", broken), ("c", lambda: 2)], deadline, lambda v: saved.append(dict(v))
    )
    assert not passed
    assert saved[-1] == {"failed": {"b": "RuntimeError: out of memory"}, "left_out": [], "a": 1, "c": 2}
    assert saved[0]["a"] == 1, "results must be saved after each section"
    assert suite.run_sections([("a", lambda: 1)], 0.0, saved.append)
    assert saved[-1] == {"failed": {}, "left_out": ["a"]}


def test_a_dry_run_on_the_cpu_measures_every_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_REPEATS", 3)
    code = decode.main(["--device", "cpu", "--results", str(tmp_path)])

    (path,) = tmp_path.glob("*/decode-tiny.json")
    values = json.loads(path.read_text())
    assert code == 0, values["failed"]
    assert values["left_out"] == []
    assert {(step["context"], step["nodes"]) for step in values["steps"]} == {(40, 0), (40, 4), (90, 0), (90, 4)}
    assert all(step["verify_seconds"] > 0 for step in values["steps"])
    assert [row["nodes"] for row in values["numerics"]] == [0, 4]
    assert values["draft"]["medusa"] > 0
    for section in ("plain 1", "plain 2", "hugging face 1", "hugging face 2"):
        assert all(spread["median"] >= 0 for spread in values[section]["tokens_per_second"].values())
        assert set(values[section]["tokens_like_ours"].values()) == {1.0}
    printed = capsys.readouterr().out
    assert table.decode(values) in printed
    assert "| 8B shape, batch 1: share of copy bandwidth | ≥ 0.85 | – | NOT MEASURED |" in table.folder_table(
        path.parent
    )


def test_the_command_compares_each_drafter_with_plain_decoding_for_a_given_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_tiny_model(tmp_path / "tiny-model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"question": text}) + "\n" for text in ("one two one two", "abab")))
    command = ["--device", "cpu", "--model", str(folder), "--prompts", str(prompts), "--max-tokens", "12"]

    code = decode.main([*command, "--results", str(tmp_path)])

    (path,) = tmp_path.glob("*/speculation-tiny-model.json")
    values = json.loads(path.read_text())
    assert code == 0, values["failed"]
    for section in ("batch 1", "batch 8"):
        rows = {row["drafter"]: row for row in values[section]}
        assert set(rows) == {"none", "ngram", "suffix"}
        assert all(row["equal"] == row["answers"] == 2 for row in rows.values())
        assert rows["none"]["speedup"] == 1.0
    assert values["batch 1"][1]["speedup_foreseen"] > 0
    assert table.speculation(values) in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_command_fails_with_a_message_if_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert decode.main(["--device", "cuda"]) == 2
    assert "there is no NVIDIA GPU" in capsys.readouterr().err
