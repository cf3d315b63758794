"""A model that is cut over several ranks gives the bits of the whole model. The ranks are processes that use gloo."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import DeepseekV3ForCausalLM

from engine.config import ModelConfig, read_config
from tests.engine.models.test_deepseek import add_mtp_module
from tests.tiny_model import make_tiny_model
from workers.model_sizes import ModelSizes
from workers.planning import weight_bytes

Results = Mapping[str, dict[str, Any]]
Folders = Callable[[str], Path]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "draft": {"seed": 1, "num_layers": 1},
    # There are 9 query heads on 3 KV heads as in SmolLM2, a vocabulary that ends within a tile, and sizes that 3 ranks
    # share unevenly.
    "nine heads": {"architecture": "mistral", "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16},
    "qwen3": {"architecture": "qwen3", "tie_word_embeddings": True, "num_attention_heads": 8, "num_layers": 2},
    "mixture": {"architecture": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
                "mlp_only_layers": [0], "norm_topk_prob": True, "num_layers": 2},
    "deepseek": {"architecture": "deepseek_v3", "moe_intermediate_size": 64, "num_layers": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            path = tmp_path_factory.mktemp("models") / name.replace(" ", "-")
            made[name] = make_tiny_model(path, **({"num_layers": 4} | MODELS[name]))
        return made[name]

    return folder


def make_adapter(model_dir: Path, folder: Path) -> Path:
    """Writes a LoRA adapter of rank 3 for attention and MLP products, some of which the ranks split by inputs."""
    config, generator = ModelConfig.from_folder(model_dir), torch.Generator().manual_seed(5)
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {
        "self_attn.q_proj": (heads, config.hidden_size),
        "self_attn.v_proj": (kv_heads, config.hidden_size),
        "self_attn.o_proj": (config.hidden_size, heads),
        "mlp.up_proj": (config.intermediate_size, config.hidden_size),
        "mlp.down_proj": (config.hidden_size, config.intermediate_size),
    }
    tensors = {}
    for layer in range(config.num_layers):
        for name, (outputs, inputs) in sizes.items():
            base = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{base}.lora_A.weight"] = 0.3 * torch.randn(3, inputs, generator=generator)
            tensors[f"{base}.lora_B.weight"] = 0.3 * torch.randn(outputs, 3, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6}))
    return folder


def run(cases: Mapping[str, dict[str, Any]], folder: Path) -> Results:
    """Runs all cases in one process of tests/engine/tensor_parallel/program.py. Returns case -> results."""
    path = folder / "cases.json"
    path.write_text(json.dumps(list(cases.values()), default=str))
    command = [sys.executable, "-m", "tests.engine.tensor_parallel.program", str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the ranks share the processors
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def results(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("run")
    llama = {"model_dir": folders("llama"), "dtype": "bfloat16"}
    drafted = llama | {"draft_dir": folders("draft"), "adapter_dir": make_adapter(folders("llama"), folder / "adapter")}
    nine = {"model_dir": folders("nine heads"), "dtype": "bfloat16", "weights": "int8"}
    qwen3 = {"model_dir": folders("qwen3"), "work": ["bits", "weight_bytes"]}
    shared = ["bits", "answers", "weight_bytes", "fingerprint"]
    cases: dict[str, dict[str, Any]] = {
        "llama 1": drafted | {"degree": 1, "work": [*shared, "adapters"]},
        "llama 2": drafted | {"degree": 2, "work": [*shared, "adapters"]},
        "llama 4": llama | {"degree": 4, "work": shared},
        **{f"int4 {degree}": llama | {"weights": "int4", "degree": degree, "work": ["bits"]} for degree in (1, 2)},
        **{f"qwen3 {degree}": qwen3 | {"degree": degree} for degree in (1, 2, 4)},
        **{
            f"{name} {degree}": {
                "model_dir": folders(name),
                "degree": degree,
                "dtype": dtype,
                "work": ["bits", "answers", "weight_bytes"],
            }
            for name, dtype in (("mixture", "bfloat16"), ("deepseek", "float32"))
            for degree in (1, 2, 4)
        },
        "nine heads 1": nine | {"degree": 1, "work": ["bits"]},
        "nine heads 2": nine | {"degree": 2, "work": ["bits", "invariance"]},
        "nine heads 3": nine | {"degree": 3, "work": ["bits"]},
    }
    return run(cases, folder)


CUTS = [
    *((name, degree) for name in ("llama", "qwen3", "mixture", "deepseek") for degree in (2, 4)),
    *(("nine heads", degree) for degree in (2, 3)),
    ("int4", 2),
]


@pytest.mark.parametrize(("name", "degree"), CUTS)
def test_hidden_states_taps_and_logits_have_the_bits_of_one_process(results: Results, name: str, degree: int) -> None:
    assert results[f"{name} {degree}"]["bits"] == results[f"{name} 1"]["bits"]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["llama", "qwen3", "nine heads", "mixture", "deepseek"])
def test_answers_with_every_drafter_and_number_of_ranks_equal_those_of_one_process(
    name: str, folders: Folders, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "model", **(MODELS[name] | {"num_layers": 4}))  # eagle3 reads layer 4
    if name == "deepseek":
        add_mtp_module(folder, DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32))
    case = {"model_dir": folder, "draft_dir": folders("draft"), "dtype": "bfloat16", "work": ["bits", "answers"]}
    degrees = (1, 3) if name == "nine heads" else (1, 2, 4)
    found = run({str(degree): case | {"degree": degree} for degree in degrees}, tmp_path)
    plain = {sampling: by_drafter["none"] for sampling, by_drafter in found["1"]["answers"].items()}
    for degree in map(str, degrees):
        assert found[degree]["bits"] == found["1"]["bits"]
        for sampling, by_drafter in found[degree]["answers"].items():
            assert len(by_drafter) == 13 + (name == "deepseek")
            assert set(by_drafter.values()) == {plain[sampling]}, by_drafter


@pytest.mark.parametrize(
    ("name", "degree", "num_drafters"),
    [("llama", 1, 13), ("llama", 2, 13), ("llama", 4, 1), ("mixture", 2, 1), ("mixture", 4, 1), ("deepseek", 2, 1),
     ("deepseek", 4, 1)],
)  # fmt: skip
def test_answers_equal_those_of_plain_decoding_on_one_process(
    results: Results, name: str, degree: int, num_drafters: int
) -> None:
    plain, found = results[f"{name} 1"]["answers"], results[f"{name} {degree}"]["answers"]
    assert set(found) == {"greedy", "T=0.8"}
    for sampling, by_drafter in found.items():
        assert len(by_drafter) == num_drafters
        assert set(by_drafter.values()) == {plain[sampling]["none"]}, by_drafter
    assert plain["greedy"]["none"] != plain["T=0.8"]["none"]


def test_answers_with_adapters_equal_those_of_one_process(results: Results) -> None:
    answers = results["llama 2"]["adapters"]
    assert answers == results["llama 1"]["adapters"]
    assert answers[0] == answers[1]  # the same adapter was loaded a second time
    assert answers[0] != results["llama 1"]["answers"]["T=0.8"]["none"]


@pytest.mark.parametrize("degree", [2, 4])
def test_a_group_of_ranks_has_the_same_fingerprint_as_one_process(results: Results, degree: int) -> None:
    """One process can therefore audit the answers of a group of ranks."""
    assert results[f"llama {degree}"]["fingerprint"] == results["llama 1"]["fingerprint"]


def test_the_test_of_row_invariance_passes_on_a_group_of_ranks(results: Results) -> None:
    assert results["nine heads 2"]["invariance"] is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", "bfloat16"), ("qwen3", "float32"), ("mixture", "bfloat16"), ("deepseek", "float32")],
)
def test_the_weights_of_rank_0_take_as_many_bytes_as_planned(
    results: Results, folders: Folders, name: str, dtype: str
) -> None:
    sizes = ModelSizes.of(read_config(folders(name)) | {"dtype": dtype})
    loaded = {degree: results[f"{name} {degree}"]["weight_bytes"] for degree in (1, 2, 4)}
    for degree, size in loaded.items():
        assert size == weight_bytes(sizes, "auto", device="cpu", tensor_parallel=degree)
    assert loaded[4] < loaded[2] < loaded[1]
