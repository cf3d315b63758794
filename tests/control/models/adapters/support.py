"""Writes LoRA adapters without a library: safetensors files with a header and zeros."""

import json
from collections.abc import Mapping
from typing import Any

from control.data.files.models import File
from control.tenants.accounts.models import Organization
from tests.control.factories import make_file
from tests.control.models.catalog.test_folder import safetensors

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
SHAPES = {"A": [2, 8], "B": [8, 2]}


def tensor(side: str, module: str = "self_attn.q_proj", layer: int = 0) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{side}.weight"


def weights_of(shapes: Mapping[str, list[int]]) -> bytes:
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return safetensors(header, end)


def make_adapter_files(
    organization: Organization, *, config: Any = None, shapes: Mapping[str, list[int]] | None = None
) -> tuple[File, File]:
    shapes = {tensor(side): shape for side, shape in SHAPES.items()} if shapes is None else shapes
    content = json.dumps(CONFIG if config is None else config)
    return (
        make_file(organization, content, filename="adapter_config.json", purpose=File.Purpose.USER_DATA),
        make_file(
            organization, weights_of(shapes), filename="adapter_model.safetensors", purpose=File.Purpose.USER_DATA
        ),
    )
