"""Makes the files of LoRA adapters: a configuration, and a safetensors file of zeros."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.data.files.models import File
from control.tenants.accounts.models import Organization
from tests.control.factories import make_file
from tests.control.models.catalog.test_folder import safetensors

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
SHAPES = {"A": [2, 8], "B": [8, 2]}  # of the two LoRA matrices: rank 2, 8 inputs and 8 outputs


def tensor_name(matrix: str, module: str = "self_attn.q_proj", layer: int = 0) -> str:
    return f"base_model.model.model.layers.{layer}.{module}.lora_{matrix}.weight"


def weights_of(shapes: Mapping[str, list[int]]) -> bytes:
    """A safetensors file with a float32 tensor for each name and shape."""
    header, end_offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end_offset, end_offset + size]}
        end_offset += size
    return safetensors(header, end_offset)


def make_adapter_files(
    organization: Organization, *, config: Any = None, shapes: Mapping[str, list[int]] | None = None
) -> tuple[File, File]:
    shapes = {tensor_name(matrix): shape for matrix, shape in SHAPES.items()} if shapes is None else shapes
    content = json.dumps(CONFIG if config is None else config)
    return (
        make_file(organization, content, filename="adapter_config.json", purpose=File.Purpose.USER_DATA),
        make_file(
            organization, weights_of(shapes), filename="adapter_model.safetensors", purpose=File.Purpose.USER_DATA
        ),
    )


def write_adapter(folder: Path, *, rank: int = 2) -> Path:
    """Writes a folder with peft's two files. Adapters of different ranks have different bytes."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, "r": rank}))
    shapes = {tensor_name("A"): [rank, 8], tensor_name("B"): [8, rank]}
    (folder / "adapter_model.safetensors").write_bytes(weights_of(shapes))
    return folder
