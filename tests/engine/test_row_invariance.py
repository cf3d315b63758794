"""The test of row invariance at start-up: it passes with our kernels, names a planted fault, and stores successes."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import engine.row_invariance
import kernels.linear
from engine.cache.kv_cache import KVCache
from engine.load import load_engine, load_model
from engine.models.base import Hidden, Rows
from engine.models.dense import Decoder
from engine.row_invariance import EXACT, RowInvariance, check_row_invariance
from kernels.attention import AttentionRows
from kernels.linear import LinearWeight
from tests.tiny_model import make_tiny_model

_reference = kernels.linear.linear_reference


def _depends_on_row_count(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, scales: Tensor | None = None
) -> Tensor:
    """Returns a product with a planted fault: for 17 rows or more, the product `down` [64, 128] gives other bits."""
    out = _reference(x, weight, bias, scales)
    return out + 1e-6 if x.shape[0] >= 17 and weight.shape == (64, 128) else out


@pytest.fixture
def count_tests(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns a list to which each run of the test adds its model. The test does not run if a success is stored."""
    tested: list[object] = []
    find_fault = engine.row_invariance.find_fault

    def record(model: Decoder) -> str | None:
        tested.append(model)
        return find_fault(model)

    monkeypatch.setattr(engine.row_invariance, "find_fault", record)
    return tested


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "deepseek_v3", "gpt_neox"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_every_architecture_are_exact(tmp_path: Path, architecture: str, dtype: str) -> None:
    model = load_model(make_tiny_model(tmp_path / "model", architecture), dtype=dtype)

    assert check_row_invariance(model, folder=tmp_path / "cache") == EXACT


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_rows_of_the_pytorch_reference_are_exact(tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.linear, "_has_kernels", lambda _: False)
    model = load_model(make_tiny_model(tmp_path / "model"), weights=weights)

    assert check_row_invariance(model, folder=tmp_path / "cache") == EXACT


def test_a_kernel_whose_rows_depend_on_the_row_count_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_tests: list[object]
) -> None:
    monkeypatch.setattr(kernels.linear, "_has_kernels", lambda _: False)
    monkeypatch.setattr(kernels.linear, "linear_reference", _depends_on_row_count)
    model = load_model(make_tiny_model(tmp_path / "model"))

    verdicts = [check_row_invariance(model, folder=tmp_path / "cache") for _ in range(2)]

    reason = "the product down [64, 128] gives a row other bits among 1 rows than among 129"
    assert verdicts == [RowInvariance(False, reason)] * 2
    assert len(count_tests) == 2  # a failure is not stored


@pytest.mark.parametrize(
    ("is_distorted", "how"),
    [
        (lambda attention: attention.prefix_lens > len(attention.prefix_lens), "in chunks"),
        (lambda attention: attention.seqs < attention.seqs.max(), "in a batch"),
        (lambda attention: attention.path_lens > 0, "as draft trees"),
    ],
)
def test_a_layer_that_depends_on_how_its_rows_are_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_distorted: Callable[[AttentionRows], Tensor], how: str
) -> None:
    model = load_model(make_tiny_model(tmp_path / "model"))
    forward = Decoder.forward

    def distort(self: Decoder, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        hidden = forward(self, rows, cache, tap_layers)
        hidden.final[is_distorted(rows.rows.attention)] += 0.001
        return hidden

    monkeypatch.setattr(Decoder, "forward", distort)

    verdict = check_row_invariance(model, folder=tmp_path / "cache")

    reason = f"a layer gives rows other bits when they are read {how} than in one pass"
    assert verdict == RowInvariance(False, reason)


def test_the_row_invariance_test_computes_few_rows_for_any_number_of_equal_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts rows instead of seconds. For SmolLM2-135M, this number of rows takes about one second on two CPU cores."""
    num_rows: Counter[str] = Counter()
    linear, forward = kernels.linear.linear, Decoder.forward

    def counted_linear(x: Tensor, weight: LinearWeight) -> Tensor:
        num_rows["products"] += len(x)
        return linear(x, weight)

    def counted_forward(self: Decoder, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        num_rows["layers"] += len(rows.token_ids) * self.config.num_layers
        return forward(self, rows, cache, tap_layers)

    monkeypatch.setattr(engine.row_invariance, "linear", counted_linear)
    monkeypatch.setattr(Decoder, "forward", counted_forward)
    work = []
    for num_layers in (1, 12):
        model = load_model(make_tiny_model(tmp_path / f"{num_layers} layers", num_layers=num_layers))
        num_rows.clear()
        assert check_row_invariance(model, folder=tmp_path / f"cache of {num_layers}") == EXACT
        work.append(dict(num_rows))

    assert work[0] == work[1]
    assert work[0]["products"] <= 5_000  # five weight shapes
    assert work[0]["layers"] <= 4_000


def test_a_success_is_stored_for_the_same_shapes_and_dtype_only(tmp_path: Path, count_tests: list[object]) -> None:
    folder, cache = make_tiny_model(tmp_path / "model"), tmp_path / "cache"
    other_shapes = make_tiny_model(tmp_path / "other", hidden_size=128)
    first, second = load_model(folder), load_model(folder)

    for model in (first, second, load_model(folder, dtype="bfloat16"), load_model(other_shapes), second):
        assert check_row_invariance(model, folder=cache) == EXACT

    assert [model is first or model is second for model in count_tests] == [True, False, False]


@pytest.mark.parametrize("part", ["_build_sha256", "_device_name"])
def test_a_success_is_not_valid_for_another_build_or_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_tests: list[object], part: str
) -> None:
    model = load_model(make_tiny_model(tmp_path / "model"))
    check_row_invariance(model, folder=tmp_path / "cache")

    monkeypatch.setattr(engine.row_invariance, part, lambda *_: "another")

    assert check_row_invariance(model, folder=tmp_path / "cache") == EXACT
    assert len(count_tests) == 2


def test_an_incomplete_stored_result_or_one_for_another_dtype_is_ignored(
    tmp_path: Path, count_tests: list[object]
) -> None:
    model, cache = load_model(make_tiny_model(tmp_path / "model")), tmp_path / "cache"
    check_row_invariance(model, folder=cache)
    (path,) = cache.iterdir()
    whole = path.read_text()
    foreign = json.dumps({"key": {**json.loads(whole)["key"], "dtype": "torch.float16"}, "exact": True})

    for content in (whole[: len(whole) // 2], foreign, "[]", "", json.dumps({"exact": True})):
        path.write_text(content)
        assert check_row_invariance(model, folder=cache) == EXACT
        assert path.read_text() == whole

    assert len(count_tests) == 6


def test_a_model_is_usable_even_if_the_test_of_row_invariance_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(engine.row_invariance, "find_fault", fail)
    monkeypatch.setattr(engine.row_invariance, "cache_folder", lambda name: tmp_path / name)

    loaded = load_engine(make_tiny_model(tmp_path / "model"))

    reason = "the test of row invariance failed to run (OutOfMemoryError)"
    assert loaded.row_invariance == RowInvariance(False, reason)


def test_a_cache_folder_that_cannot_be_written_does_not_change_the_result(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")

    model = load_model(make_tiny_model(tmp_path / "model"))

    assert check_row_invariance(model, folder=tmp_path / "cache") == EXACT


def test_a_model_in_int4_does_not_use_the_stored_result_of_the_model_in_int8(tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path / "model")
    for weights in ("int8", "int4"):
        assert check_row_invariance(load_model(model_dir, weights=weights), folder=tmp_path / "results").exact

    assert len(list((tmp_path / "results").iterdir())) == 2
