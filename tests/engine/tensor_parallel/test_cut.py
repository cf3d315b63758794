"""`Cut` divides a model among ranks; models, degrees and devices that it does not support are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, ModelConfig
from engine.errors import TensorParallelOnCuda, TensorParallelUnsupported
from engine.models.quantized.kept import pack_as_stored
from engine.models.quantized.weight import QuantizedWeight
from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.load import check_tensor_parallel
from kernels.linear import linear
from tests.tiny_model import make_tiny_model, tiny_config


def config_of(**sizes: Any) -> ModelConfig:
    return ModelConfig.from_values(tiny_config("llama", **sizes).to_dict())


SMOLLM2 = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152}


@pytest.mark.parametrize("degree", [2, 3, 9])
@pytest.mark.parametrize("name", ["q_proj", "o_proj", "gate_proj", "lm_head"])
def test_every_output_belongs_to_one_rank_and_each_part_begins_at_a_whole_head_or_tile(degree: int, name: str) -> None:
    config = config_of(**SMOLLM2)
    size = {"q_proj": 576, "o_proj": 576, "gate_proj": config.intermediate_size, "lm_head": config.vocab_size}[name]
    unit = {"q_proj": 64, "lm_head": 64}.get(name, 16)
    owned: list[int] = []
    for rank in range(degree):
        cut = Cut(config, rank, degree)
        part = cut.vocabulary if name == "lm_head" else range(size)[cut.outputs(f"model.{name}.weight", size)]
        assert part.start % unit == 0
        owned += part
    assert owned == list(range(size))


def test_ranks_beyond_the_number_of_kv_heads_share_a_kv_head_and_divide_its_query_heads() -> None:
    cuts = [Cut(config_of(num_attention_heads=8, num_key_value_heads=2), rank, 4) for rank in range(4)]

    assert [cut.kv_heads for cut in cuts] == [range(0, 1), range(0, 1), range(1, 2), range(1, 2)]
    assert [cut.heads for cut in cuts] == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]


def test_norms_and_routers_are_not_cut() -> None:
    cut = Cut(config_of(), 1, 2)

    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.gate.weight"):
        assert cut.outputs(name, 64) == slice(None)


@pytest.mark.parametrize(
    ("sizes", "degree", "reason"),
    [
        (SMOLLM2, 4, "9 query heads on 3 KV heads cannot be divided by 4"),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 8, "hidden size of 64 has fewer than 8 parts of 16"),
        ({"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 512}, 8, "vocabulary of 259 has fewer"),
    ],
)
def test_a_degree_that_leaves_a_rank_without_work_or_cuts_a_head_is_refused(
    sizes: dict[str, Any], degree: int, reason: str
) -> None:
    with pytest.raises(TensorParallelUnsupported, match=reason):
        Cut(config_of(**sizes), 0, degree)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama")


def test_gpus_are_refused_because_tensor_parallelism_has_never_been_run_on_gpus(model_dir: Path) -> None:
    with pytest.raises(TensorParallelOnCuda, match="never been run on GPUs") as raised:
        check_tensor_parallel(model_dir, EngineConfig(tensor_parallel=2, device="cuda"))
    assert raised.value.code == "tensor_parallel_not_run_on_cuda"


def test_unsupported_models_and_machines_without_compiled_kernels_are_refused(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(tensor_parallel=2, device="cpu")
    check_tensor_parallel(model_dir, config)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(TensorParallelUnsupported, match="got 'gpt2'"):
        check_tensor_parallel(tmp_path, config)
    monkeypatch.setattr("engine.tensor_parallel.load.library", lambda: None)
    with pytest.raises(TensorParallelUnsupported, match="install a C compiler"):
        check_tensor_parallel(model_dir, config)


def test_the_kernel_of_a_quantized_weight_depends_on_the_outputs_of_all_ranks() -> None:
    """The last output does not fit into int4, so a rank with other outputs must not use int4 either."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-8, 8, (64, 64), generator=generator).to(torch.int8)
    values[63, 0] = 100
    weight = QuantizedWeight(values=values, scales=torch.full((64, 1), 0.25), groups=None, group_size=64)
    x, options = torch.randn(3, 64, generator=generator), (torch.float32, torch.device("cpu"), None)
    whole, part = (pack_as_stored([weight], *options, [kept]) for kept in (slice(None), slice(0, 32)))

    assert whole is not None
    assert part is not None
    assert (whole.format_name, part.format_name) == ("int8", "int8")
    assert torch.equal(linear(x, part), linear(x, whole)[:, :32])
