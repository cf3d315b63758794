"""Makes quantized checkpoints of a tiny model by the definition of each format, without the engine's own readers.

Every quantizing function returns the tensors that replace `module.weight`, and the float32 weight that these tensors
represent. Shape letters: E experts, N outputs, K inputs, G groups.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny_model import make_tiny_model

Stored = dict[str, Tensor]  # suffix after the module's name -> tensor
GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs whose values are in bits 0 to 3, 4 to 7, ... of a word


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]
    quantize: Callable[[Tensor], tuple[Stored, Tensor]]


def float8_blocks(weight: Tensor) -> tuple[Stored, Tensor]:
    """Quantizes blocks of 48 x 40. The last block of each row and column of blocks is incomplete."""
    N, K = weight.shape
    values, exact = torch.empty(N, K, dtype=torch.float8_e4m3fn), torch.empty(N, K)
    scales = torch.empty(-(-N // 48), -(-K // 40))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(48 * i, 48 * i + 48), slice(40 * j, 40 * j + 40))
            scales[i, j] = weight[block].abs().max() / 448
            values[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            exact[block] = values[block].float() * scales[i, j]
    return {"weight": values, "weight_scale_inv": scales}, exact


def float8_tensor(weight: Tensor) -> tuple[Stored, Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, values.float() * scale


def float8_channel(weight: Tensor) -> tuple[Stored, Tensor]:
    scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    values = (weight / scales.float()).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scales}, values.float() * scales.float()


def int8_channel(weight: Tensor, lowest: int = -127) -> tuple[Stored, Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scales).round().clamp(-127, 127)
    values[0, 0] = lowest
    return {"weight": values.to(torch.int8), "weight_scale": scales}, values * scales


def grouped(weight: Tensor, bits: int, groups: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantizes the columns of each group together. groups: [K], the group of each column.

    Returns unsigned values [N, K], scales [N, G], zero points [N, G] and the weight [N, K] that they represent.
    """
    N, K, top, count = *weight.shape, 2**bits - 1, int(groups.max()) + 1
    values, exact = torch.empty(N, K, dtype=torch.int32), torch.empty(N, K)
    scales, zeros = torch.empty(N, count), torch.empty(N, count, dtype=torch.int32)
    for g in range(count):
        part = weight[:, groups == g]
        high, low = part.amax(1).clamp(min=1e-3), part.amin(1).clamp(max=-1e-3)
        if symmetric:
            scales[:, g] = (torch.maximum(high, -low) / (top // 2)).half().float()
            zeros[:, g] = 2 ** (bits - 1)
        else:
            scales[:, g] = ((high - low) / (top - 1)).half().float()
            zeros[:, g] = (-low / scales[:, g]).round().clamp(1, top).int()
        q = (part / scales[:, g : g + 1]).round() + zeros[:, g : g + 1]
        values[:, groups == g] = q.clamp(0, top).int()
        exact[:, groups == g] = (values[:, groups == g] - zeros[:, g : g + 1]).float() * scales[:, g : g + 1]
    return values, scales, zeros, exact


def pack(values: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Packs the last dimension into int32 words, lowest bits first. order: number `order[i]` is put in place i."""
    count = 32 // bits
    order = order or tuple(range(count))
    rows = []
    for row in values.tolist():
        row += [0] * (-len(row) % count)
        words = [
            sum(row[start + order[place]] << (bits * place) for place in range(count))
            for start in range(0, len(row), count)
        ]
        rows.append([word - 2**32 if word >= 2**31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def consecutive(K: int, size: int = GROUP) -> Tensor:
    return torch.arange(K) // size


def shuffled(K: int) -> Tensor:
    return consecutive(K)[torch.randperm(K, generator=torch.Generator().manual_seed(K))]


def packed_int(bits: int, *, symmetric: bool, in_order: bool = True) -> Callable[[Tensor], tuple[Stored, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = consecutive(weight.shape[1]) if in_order else shuffled(weight.shape[1])
        values, scales, zeros, exact = grouped(weight, bits, groups, symmetric=symmetric)
        stored = {
            "weight_packed": pack(values, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = pack(zeros.t(), bits).t().contiguous()
        if not in_order:
            stored["weight_g_idx"] = groups.int()
        return stored, exact

    return quantize


def awq(weight: Tensor) -> tuple[Stored, Tensor]:
    values, scales, zeros, exact = grouped(weight, 4, consecutive(weight.shape[1]), symmetric=False)
    stored = {
        "qweight": pack(values.t(), 4, AWQ_ORDER),
        "qzeros": pack(zeros.t(), 4, AWQ_ORDER),
        "scales": scales.t().half().contiguous(),
    }
    return stored, exact


def gptq(bits: int, *, symmetric: bool, v2: bool, in_order: bool) -> Callable[[Tensor], tuple[Stored, Tensor]]:
    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        groups = consecutive(weight.shape[1]) if in_order else shuffled(weight.shape[1])
        values, scales, zeros, exact = grouped(weight, bits, groups, symmetric=symmetric)
        stored = {
            "qweight": pack(values, bits).t().contiguous(),
            "qzeros": pack(zeros.t() - (0 if v2 else 1), bits),
            "scales": scales.t().half().contiguous(),
            "g_idx": groups.int(),
        }
        return stored, exact

    return quantize


def compressed(kind: str, form: str, bits: int, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": kind, "num_bits": bits, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def gptq_config(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, **more}


CASES = {
    "fp8 blocks": Case({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 40]}, float8_blocks),
    "fp8 per tensor": Case({"quant_method": "fp8", "activation_scheme": "static"}, float8_tensor),
    "fp8 per channel": Case({"quant_method": "fbgemm_fp8"}, float8_channel),
    "compressed fp8": Case(compressed("float", "float-quantized", 8, strategy="channel"), float8_channel),
    "compressed int8": Case(compressed("int", "int-quantized", 8, strategy="channel"), int8_channel),
    "compressed int8 with -128": Case(
        compressed("int", "int-quantized", 8, strategy="channel"), lambda weight: int8_channel(weight, -128)
    ),
    "compressed int8 groups": Case(
        compressed("int", "pack-quantized", 8, strategy="group", group_size=GROUP), packed_int(8, symmetric=True)
    ),
    "compressed int4": Case(
        compressed("int", "pack-quantized", 4, strategy="group", group_size=GROUP), packed_int(4, symmetric=True)
    ),
    "compressed int4 with zeros": Case(
        compressed("int", "pack-quantized", 4, strategy="group", group_size=GROUP, symmetric=False),
        packed_int(4, symmetric=False),
    ),
    "compressed int4 out of order": Case(
        compressed("int", "pack-quantized", 4, strategy="group", group_size=GROUP, actorder="group"),
        packed_int(4, symmetric=True, in_order=False),
    ),
    "awq": Case({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "gptq": Case(gptq_config(4), gptq(4, symmetric=True, v2=False, in_order=True)),
    "gptq with zeros": Case(gptq_config(4, sym=False), gptq(4, symmetric=False, v2=False, in_order=True)),
    "gptq desc_act": Case(gptq_config(4, desc_act=True), gptq(4, symmetric=True, v2=False, in_order=False)),
    "gptq v2": Case(gptq_config(4, checkpoint_format="gptq_v2"), gptq(4, symmetric=False, v2=True, in_order=True)),
    "gptq 8 bits": Case(gptq_config(8), gptq(8, symmetric=True, v2=False, in_order=True)),
}


def make_quantized(
    folder: Path,
    name: str,
    architecture: str = "qwen2",
    *,
    change: Callable[[Stored], object] | None = None,
    **values: Any,
) -> tuple[Path, Path]:
    """Returns the folders of the quantized model and of a float32 model with the same weights.

    change: is called with the tensors of the first quantized module. values: options of the model's configuration.
    """
    exact = make_tiny_model(folder / "exact", architecture, **values)
    quantized = make_tiny_model(folder / "quantized", architecture, **values)
    case, tensors = CASES[name], load_file(exact / "model.safetensors")
    stored: Stored = {}
    for key in sorted(tensors):
        module, _, suffix = key.rpartition(".")
        if suffix != "weight" or not module.endswith("_proj"):
            stored[key] = tensors[key]
            continue
        parts, tensors[key] = case.quantize(tensors[key])
        if change is not None:
            change(parts)
            change = None
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, exact / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    describe(quantized, case.config)
    return quantized, exact


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(weight: Tensor) -> tuple[Stored, Tensor]:
    """Quantizes the experts' weights [E, K, N] in groups of 32 inputs, each with one power of two as its scale."""
    groups = weight.transpose(1, 2).unflatten(2, (-1, 32))  # [E, N, G, 32]
    exponents = groups.abs().amax(3).log2().floor() - 2
    factors = 2.0 ** exponents.unsqueeze(-1)
    codes = (groups / factors).unsqueeze(-1).sub(E2M1).abs().argmin(-1)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    stored = {"blocks": blocks.to(torch.uint8), "scales": (exponents + 127).to(torch.uint8)}
    return stored, (E2M1[codes] * factors).flatten(2).transpose(1, 2).contiguous()


def make_mxfp4(folder: Path, *, change: Callable[[Stored], object] | None = None, **values: Any) -> tuple[Path, Path]:
    """Like `make_quantized`, for the experts of gpt-oss. values: options of the model's configuration."""
    values = {"num_local_experts": 4, "num_experts_per_tok": 2} | values
    exact = make_tiny_model(folder / "exact", "gpt_oss", **values)
    quantized = make_tiny_model(folder / "quantized", "gpt_oss", **values)
    tensors = load_file(exact / "model.safetensors")
    stored = dict(tensors)
    for name in sorted(name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))):
        parts, tensors[name] = mxfp4(stored.pop(name))
        if change is not None:
            change(parts)
            change = None
        stored |= {f"{name}_{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, exact / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    describe(quantized, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    return quantized, exact


def describe(folder: Path, quantization: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
