"""Writes small speculators for the model of tests.tiny_model, with the same files as trained speculators."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.drafters.block_config import BlockConfig
from engine.drafters.block_model import BlockModel
from engine.drafters.eagle3_config import Eagle3Config
from engine.drafters.eagle3_module import Eagle3
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from tests.engine.tiny_speculators import block_values, make_mtp, randomize
from workers.exports.errors import ExchangeError

VOCAB = torch.arange(3, 203)  # the draft vocabulary: 200 of the target's 259 tokens
LORA = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"
_DSPARK: dict[str, Any] = {
    "speculators_model_type": "dspark",
    "markov_rank": 8,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def write_speculator(kind: str, folder: Path, model: Path) -> Path:
    folder.mkdir()
    if kind in ("medusa", "turbo_lora"):
        write_medusa(folder)
    elif kind == "eagle3":
        write_eagle3(folder)
    elif kind == "mtp":
        make_mtp().save(folder)
    elif kind == "block":
        config = BlockConfig.from_values(block_values(draft_vocab_size=len(VOCAB), **_DSPARK))
        block = BlockModel(config, VOCAB, lm_head=torch.ones(len(VOCAB), 64))
        randomize(block, 0)
        block.save(folder)
    else:
        shutil.copytree(model, folder, dirs_exist_ok=True)
    if kind == "turbo_lora":
        lora = {LORA.format("A"): torch.ones(2, 64), LORA.format("B"): torch.ones(64, 2)}
        save_file(lora, folder / "adapter_model.safetensors")
        adapter = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(adapter))
    (folder / "provenance.json").write_text("{}\n")
    (folder / "report.json").write_text("{}\n")
    return folder


def write_medusa(folder: Path, **changes: Any) -> None:
    """Writes Medusa heads. changes: fields of `MedusaConfig` with other values."""
    config = replace(MedusaConfig(hidden_size=64, num_heads=3, draft_vocab_size=len(VOCAB)), **changes)
    heads = MedusaHeads(config, VOCAB)
    randomize(heads, 0)
    heads.save(folder, base_model="a/model")


def write_eagle3(folder: Path, **changes: Any) -> None:
    """Writes an EAGLE-3 drafter. changes: fields of `Eagle3Config` with other values."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "target_hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 259,
        "draft_vocab_size": len(VOCAB),
        "norm_eps": 1e-5,
        "max_positions": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tap_layers": (1, 2, 3),
        "fc_norm": True,
        "norm_output": True,
    }
    module = Eagle3(Eagle3Config(**sizes | changes), VOCAB)
    randomize(module, 0)
    module.save(folder, base_model="a/model")


def refusal(action: Callable[..., object], *arguments: object) -> str:
    """Calls the action, which must raise an ExchangeError, and returns the error's message."""
    with pytest.raises(ExchangeError) as refused:
        action(*arguments)
    return refused.value.message
