"""Batches and evaluations run with the engine options of their specs, within the planned memory."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import read_config
from engine.errors import ModelTooLarge
from engine.loop import Engine
from engine.request import StepOutput
from tests.workers.inference.test_batch import make_spec as batch_spec
from tests.workers.inference.test_batch import run
from tests.workers.inference.test_evaluation import make_spec as evaluation_spec
from tests.workers.support import Recorder, chat_rows
from workers.contracts import EVALUATION_ENGINES, MAX_ROWS, FailureClass
from workers.failures import TooManyRows, UserConfigError, failed_event
from workers.inference import batch, evaluation
from workers.model_sizes import ModelSizes
from workers.planning import Wanted, kv_slot_bytes, plan


def test_a_batch_without_max_batch_size_answers_as_many_rows_at_once_as_fit_into_memory(
    tmp_path: Path, tiny_model: Path
) -> None:
    spec = replace(batch_spec(tmp_path, tiny_model, chat_rows(1)), max_batch_size=None, device="cpu")
    sizes = ModelSizes.of(read_config(tiny_model))
    five_rows = plan(sizes, Wanted(device="cpu", memory_bytes=10**9, concurrency=5)).parts

    limited = batch.engine_config(replace(spec, memory_bytes=five_rows.total))

    assert (limited.max_batch_size, limited.kv_cache_bytes) == (5, five_rows.kv_cache)
    assert batch.engine_config(spec).max_batch_size == MAX_ROWS["cpu"]
    assert batch.engine_config(replace(spec, max_batch_size=3, memory_bytes=10**9)).max_batch_size == 3


@pytest.mark.parametrize("fails_in", ["load_engine", "answer_rows"])
def test_a_batch_out_of_memory_reports_how_many_rows_it_answered_at_once(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    sizes = ModelSizes.of(read_config(tiny_model))
    memory_bytes = plan(sizes, Wanted(device="cpu", memory_bytes=10**9, concurrency=5)).parts.total
    spec = replace(batch_spec(tmp_path, tiny_model, chat_rows(9)), max_batch_size=None, device="cpu")
    monkeypatch.setattr(batch, fails_in, fail)

    with pytest.raises(TooManyRows) as raised:
        run(replace(spec, memory_bytes=memory_bytes))

    event = failed_event(raised.value)
    assert (event.failure_class, event.code, event.num_rows) == (FailureClass.OUT_OF_MEMORY, "out_of_memory", 5)


def test_the_engine_never_holds_more_rows_than_were_planned(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    step = Engine.step

    def counted(engine: Engine) -> list[StepOutput]:
        nonlocal most
        most = max(most, len(engine.scheduler.running) + len(engine.scheduler.waiting))
        return step(engine)

    monkeypatch.setattr(Engine, "step", counted)
    sizes = ModelSizes.of(read_config(tiny_model))
    memory_bytes = plan(sizes, Wanted(device="cpu", memory_bytes=10**9, concurrency=3)).parts.total
    spec = replace(
        batch_spec(tmp_path, tiny_model, chat_rows(9)), max_batch_size=None, device="cpu", memory_bytes=memory_bytes
    )

    lines, _ = run(spec)

    assert [line["ok"] for line in lines] == [True] * 9
    assert most == 3


def test_a_model_that_does_not_fit_is_a_user_config_error_that_lists_the_size_of_each_part(
    tmp_path: Path, tiny_model: Path
) -> None:
    spec = replace(batch_spec(tmp_path, tiny_model, chat_rows(1)), max_batch_size=None, memory_bytes=10**8)

    with pytest.raises(UserConfigError) as refused:
        run(spec)

    failed = failed_event(refused.value)
    assert (failed.failure_class, failed.code) == (FailureClass.USER_CONFIG, "does_not_fit")
    parts = ("weights", "speculator", "adapters", "work space", "runtime", "kv cache")
    assert [part for part in parts if not re.search(rf"{part} \d+\.\d+ GB", failed.message)] == []


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ({"weights": "fp8"}, "weights_not_supported"),
        ({"kv_dtype": "bf16"}, "kv_dtype_not_supported"),
        ({"kv_dtype": "fp8"}, "kv_dtype_not_supported"),
    ],
)
def test_options_that_this_device_or_model_does_not_support_are_refused(
    tmp_path: Path, tiny_model: Path, option: dict[str, Any], code: str
) -> None:
    spec = replace(batch_spec(tmp_path, tiny_model, chat_rows(1)), device="cpu", **option)

    with pytest.raises(UserConfigError) as refused:
        run(spec)

    assert refused.value.code == code


def test_all_arms_run_with_the_options_of_the_spec_which_the_report_and_the_evidence_list(
    tmp_path: Path, tiny_model: Path
) -> None:
    options: dict[str, Any] = {
        "max_concurrency": 8,
        "weights": "int8",
        "max_context": 200,
        "draft_budget": 3,
        "kv_dtype": "float32",
    }
    spec = replace(evaluation_spec(tmp_path, tiny_model, chat_rows(3)), memory_bytes=10**9, **options)

    arms = evaluation.load_arms(spec)
    finished = evaluation.run_evaluation(spec, Recorder())

    for engine in (arms.plain, arms.suffix, arms.speculative):
        assert (engine.config.max_batch_size, engine.max_seq_len, engine.config.draft_budget) == (8, 200, 3)
    evidence = json.loads(Path(finished.artifacts["evidence"]).read_text())
    for stated in (finished.result, evidence):
        assert stated["engine"] == {**options, "kv_tokens": 8 * (200 + 3)}
    assert (evidence["weights"], evidence["result"]) == ("int8", "equal")


def test_the_memory_of_an_evaluation_holds_the_caches_of_all_arms(tmp_path: Path, tiny_model: Path) -> None:
    spec = replace(evaluation_spec(tmp_path, tiny_model, chat_rows(1)), device="cpu")
    sizes = ModelSizes.of(read_config(tiny_model))
    parts = plan(sizes, Wanted(device="cpu", memory_bytes=10**9, concurrency=4, num_engines=EVALUATION_ENGINES)).parts

    config = evaluation.engine_config(replace(spec, memory_bytes=parts.total))
    smaller = evaluation.engine_config(replace(spec, memory_bytes=parts.total - 1500 * kv_slot_bytes(sizes)))

    assert EVALUATION_ENGINES * config.kv_cache_bytes == parts.kv_cache
    assert config.kv_cache_bytes - smaller.kv_cache_bytes == 500 * kv_slot_bytes(sizes)
    with pytest.raises(ModelTooLarge, match=r"may use 0\.30 GB \(weights .*kv cache"):
        evaluation.engine_config(replace(spec, memory_bytes=3 * 10**8))


def test_a_concurrency_above_max_concurrency_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    spec = replace(evaluation_spec(tmp_path, tiny_model, chat_rows(1)), max_concurrency=3)

    with pytest.raises(UserConfigError, match="at most 3, the max_concurrency of the engine, got 4") as refused:
        evaluation.run_evaluation(spec, Recorder())

    assert refused.value.code == "concurrency_too_high"
