"""`fit` chooses the size of the KV cache so that the engine stays within a memory budget."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.device_memory import total_bytes
from engine.errors import ModelTooLarge
from engine.load import load_engine
from engine.planned import fit
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=1 << 20)


def test_the_kv_cache_takes_the_memory_that_the_rest_of_the_engine_leaves(model_dir: Path) -> None:
    config = EngineConfig(device="cpu", max_seq_len=1 << 19)
    small, large = (fit(config, model_dir, memory_bytes=gigabytes * 10**9) for gigabytes in (2, 3))

    assert large.kv_cache_bytes - small.kv_cache_bytes == pytest.approx(1e9, abs=1e4)
    assert load_engine(model_dir, config=small).max_seq_len == 1 << 19


def test_the_kv_cache_is_no_larger_than_a_full_batch_can_use(model_dir: Path) -> None:
    config = fit(EngineConfig(device="cpu", max_seq_len=100, max_batch_size=2), model_dir, memory_bytes=10**10)

    engine = load_engine(model_dir, config=config)

    assert engine.cache.num_slots == 2 * (100 + 32)


def test_a_context_for_which_the_memory_is_too_small_is_refused(model_dir: Path) -> None:
    config = EngineConfig(device="cpu", max_seq_len=1 << 20, max_batch_size=1)

    with pytest.raises(ModelTooLarge, match="one sequence of 1,048,576 tokens needs"):
        fit(config, model_dir, memory_bytes=600 * 10**6)


def test_a_memory_share_refers_to_the_memory_limit_of_the_control_groups(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    (tmp_path / "service/engine").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "service/memory.max").write_text(f"{4 * 10**9}\n")
    own = tmp_path / "own"
    own.write_text("0::/service/engine\n")
    total = partial(total_bytes, groups=tmp_path, own_groups=own)

    assert total(cpu) == min(4 * 10**9, total_bytes(cpu))
    monkeypatch.setattr("engine.planned.total_bytes", lambda _: 4 * 10**9)
    config = EngineConfig(device="cpu", max_seq_len=1 << 19)
    assert fit(config, model_dir, memory_share=0.5) == fit(config, model_dir, memory_bytes=2 * 10**9)


def test_the_memory_limits_of_control_groups_version_1_are_respected(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("123456789\n")
    own = tmp_path / "own"
    own.write_text("3:cpu,cpuacct:/a\n2:memory:/a/b\n")

    assert total_bytes(torch.device("cpu"), groups=tmp_path, own_groups=own) == 123456789


@pytest.mark.parametrize("limits", [{"memory_bytes": 10**9, "memory_share": 0.5}, {"memory_share": 0.0}])
def test_memory_bytes_together_with_memory_share_or_a_share_of_zero_is_refused(
    model_dir: Path, limits: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="memory_share must"):
        fit(EngineConfig(device="cpu"), model_dir, **limits)


def test_without_a_memory_budget_a_config_for_the_cpu_is_not_changed(model_dir: Path) -> None:
    config = EngineConfig(device="cpu")

    assert fit(config, model_dir, memory_bytes=None) == config
