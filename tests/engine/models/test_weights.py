"""Quantized weights (int8, int4) give nearly the original logits, and a file's weights are loaded in pieces."""

import re
import sys
from pathlib import Path

import pytest
import torch

import engine.models.weights as loading
from benchmarks.memory import write_random_model
from engine.config import EngineConfig
from engine.errors import ModelNotLoadable, QuantizedCheckpoint
from engine.load import load_model
from kernels.linear import LinearWeight, pack
from tests.tiny_model import make_tiny_model

TOKEN_IDS = torch.randint(0, 250, (60,), generator=torch.Generator().manual_seed(1))


def logits(folder: Path, dtype: str, weights: str, *, tokens: int = 60) -> torch.Tensor:
    """Returns the logits [tokens, V] of the first tokens of TOKEN_IDS."""
    model = load_model(folder, dtype=dtype, weights=weights)
    return model.logits(model.hidden_states(TOKEN_IDS[:tokens]).final).clone()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("weights", "bound"), [("int8", 5e-3), ("int4", 0.5)])
def test_quantized_logits_are_close_to_unquantized_logits(
    tmp_path: Path, dtype: str, tied: bool, weights: str, bound: float
) -> None:
    folder = make_tiny_model(tmp_path, "qwen2", tie_word_embeddings=tied)
    exact, quantized = (logits(folder, dtype, form).log_softmax(-1) for form in ("auto", weights))
    divergence = (exact.exp() * (exact - quantized)).sum(-1)  # nats per token
    assert 0 < float(divergence.mean()) < bound


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_logits_of_a_row_do_not_depend_on_other_rows(
    tmp_path: Path, compiled: bool, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        for module in ("linear", "norm", "swiglu", "rope", "attention"):
            monkeypatch.setattr(f"kernels.{module}.library", lambda: None)
    folder = make_tiny_model(tmp_path, "qwen3")
    expected = logits(folder, "bfloat16", weights)
    for tokens in (1, 7, 33):
        assert torch.equal(logits(folder, "bfloat16", weights, tokens=tokens), expected[:tokens]), tokens


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_are_refused_for_models_that_do_not_support_them(tmp_path: Path, weights: str) -> None:
    folder = make_tiny_model(tmp_path, "deepseek_v3")
    with pytest.raises(ModelNotLoadable, match=f"{weights} weights are for Llama"):
        load_model(folder, weights=weights)


def test_int4_weights_are_refused_if_a_layer_size_is_no_multiple_of_the_group_size(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, intermediate_size=72)
    with pytest.raises(ModelNotLoadable, match="multiples of 32"):
        load_model(folder, weights="int4")


def test_a_model_folder_with_hf_quant_config_json_is_refused(tmp_path: Path) -> None:
    (make_tiny_model(tmp_path) / "hf_quant_config.json").write_text("{}")

    with pytest.raises(QuantizedCheckpoint, match=r"hf_quant_config\.json"):
        load_model(tmp_path)


def test_an_unknown_value_of_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="weights must be one of auto, bf16, int8, int4, fp8, got 'int3'"):
        EngineConfig(weights="int3")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the list of mappings in /proc")
def test_only_part_of_a_file_is_in_memory_while_its_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_random_model(tmp_path, hidden_size=256, num_layers=12, vocab_size=1000)
    path = folder / "model.safetensors"
    mapped = []

    def pack_and_read(weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearWeight:
        entries = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1:]
        mapped.append(sum(1024 * int(re.findall(r"\nRss: +(\d+) kB", f"\n{entry}")[0]) for entry in entries))
        return pack(weight, bias)

    monkeypatch.setattr(loading, "_MAX_MAPPED_BYTES", 1 << 20)
    monkeypatch.setitem(loading._PACKS, "auto", pack_and_read)
    load_model(folder, device="cpu")

    assert len(mapped) == 4 * 12
    assert 0 < max(mapped) < path.stat().st_size / 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads the list of mappings in /proc")
@pytest.mark.parametrize("architecture", ["llama", "deepseek_v3", "olmo2", "gpt2", "qwen2_moe"])
def test_no_file_stays_mapped_after_the_weights_are_loaded(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny_model(tmp_path, architecture, dtype=torch.bfloat16)

    model = load_model(folder, device="cpu")

    assert model.dtype == torch.bfloat16
    assert str(folder) not in Path("/proc/self/maps").read_text()
