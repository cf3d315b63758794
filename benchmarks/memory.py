"""Compares the planned memory of an engine on this CPU with the memory that it uses, and measures the peak of loading.

    python -m benchmarks.memory [--model DIR] [--large]

For each format of the weights, a process loads the model, fills a KV cache of 4 x 2,080 positions and decodes four
requests. The command needs Linux. It prints a table in GB:

    planned     the plan of workers/planning.py for these options: the total, and the weights alone
    used        the process's resident set at the end
    peak        the largest resident set while the model was loaded, minus the resident set before; also as a multiple
                of the planned weights

--large adds models of 1.1 billion random weights each, which are written to a temporary folder: a dense model in
bfloat16, a mixture of experts, and two dense models stored in int8 and int4, whose formats the engine keeps.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import EngineConfig, read_config
from engine.drafters.ngram import NgramDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import MAX_DRAFT_NODES, Engine
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import prepare
from kernels.cpu.library import library
from workers.model_sizes import ModelSizes
from workers.planning import Wanted, plan
from workers.stored_weights import read_stored

FORMATS = ("auto", "int8", "int4")
KINDS = ("dense", "mixture", "int8", "int4")  # kinds of models that `write_random_model` writes
_SEQUENCES, _CONTEXT = 4, 2048
_EXPERTS = 8
_QUANTIZATIONS = {
    kind: {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": {"weights": weights}}}
    for kind, form, weights in (
        ("int8", "int-quantized", {"type": "int", "num_bits": 8, "strategy": "channel"}),
        ("int4", "pack-quantized", {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The planned and the used memory of a model with one format of weights, in bytes."""

    weights: str
    planned: int
    planned_weights: int
    used: int
    peak: int  # the largest resident set while the model was loaded, minus the resident set before


def measure(folder: Path, weights: str) -> Measured:
    """Loads and uses the model in this process, which must not have loaded another one. Raises: OSError: not Linux."""
    library()  # everything that an engine needs besides the model is loaded before the first reading
    importlib.import_module("engine.server.app")
    tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else None
    planned = plan(
        ModelSizes.of(read_config(folder), read_stored(folder)),
        Wanted(device="cpu", memory_bytes=1 << 40, weights=weights, context=_CONTEXT, concurrency=_SEQUENCES),
    )
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _reading("status", "VmRSS")
    model = load_model(folder, weights=weights, device="cpu")
    peak = _reading("status", "VmHWM") - before
    config = EngineConfig(
        max_batch_size=_SEQUENCES, max_seq_len=_CONTEXT, kv_cache_bytes=planned.parts.kv_cache, device="cpu"
    )
    engine = Engine(model, NgramDrafter(), config)
    assert engine.cache.num_slots == _SEQUENCES * (_CONTEXT + MAX_DRAFT_NODES)
    for cache in (*engine.cache.keys, *engine.cache.values):
        cache.zero_()
    prompt = torch.randint(0, model.config.vocab_size, (500,)).tolist()
    sampling = SamplingParams(max_tokens=16, ignore_eos=True)
    generate(engine, [Request(str(n), (n, *prompt), sampling) for n in range(_SEQUENCES)])
    used = _reading("status", "VmRSS")
    del tokenizer  # keeps the tokenizer alive until here, because it is part of the memory in use
    parts = planned.parts
    return Measured(weights=weights, planned=parts.total, planned_weights=parts.weights, used=used, peak=peak)


def measure_in_child(folder: Path, weights: str) -> Measured:
    """Raises: CalledProcessError."""
    command = [sys.executable, "-m", "benchmarks.memory", "--model", str(folder), "--measure", weights]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Measured(**json.loads(out.splitlines()[-1]))


def write_random_model(
    folder: Path, *, hidden_size: int, num_layers: int, vocab_size: int, kind: str = "dense"
) -> Path:
    """Writes config.json and random weights without a tokenizer, and returns the folder.

    kind: one of `KINDS`; a Llama in bfloat16, a Mixtral with 8 experts, or a Llama whose layers compressed-tensors
        stores in int8 with a scale per output, or in int4 with a scale per group of 32 columns.
    """
    H, intermediate, kv = hidden_size, 11 * hidden_size // 4, hidden_size // 4
    config: dict[str, Any] = {
        "model_type": "mixtral" if kind == "mixture" else "llama",
        "hidden_size": H,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": H // 64,
        "num_key_value_heads": H // 256,
        "vocab_size": vocab_size,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if kind == "mixture":
        config |= {"num_local_experts": _EXPERTS, "num_experts_per_tok": 2}
    elif kind != "dense":
        config["quantization_config"] = _QUANTIZATIONS[kind]
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for name, shape in _shapes(H, intermediate, kv, num_layers, vocab_size, kind == "mixture").items():
        if len(shape) == 1:
            tensors[f"{name}.weight"] = torch.ones(shape, dtype=torch.bfloat16)
            continue
        stored = kind if name.endswith("_proj") else "dense"
        tensors |= {f"{name}.{part}": tensor for part, tensor in _random_weight(shape, stored, generator).items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _shapes(
    H: int, intermediate: int, kv: int, num_layers: int, vocab_size: int, is_mixture: bool
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the weights by the names of their modules."""
    attention = {"q_proj": (H, H), "k_proj": (kv, H), "v_proj": (kv, H), "o_proj": (H, H)}
    mlp = {"gate_proj": (intermediate, H), "up_proj": (intermediate, H), "down_proj": (H, intermediate)}
    expert = {"w1": (intermediate, H), "w3": (intermediate, H), "w2": (H, intermediate)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab_size, H), "lm_head": (vocab_size, H)}
    shapes["model.norm"] = (H,)
    for layer in (f"model.layers.{index}" for index in range(num_layers)):
        shapes |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{layer}.{name}_layernorm": (H,) for name in ("input", "post_attention")}
        if not is_mixture:
            shapes |= {f"{layer}.mlp.{name}": shape for name, shape in mlp.items()}
            continue
        block = f"{layer}.block_sparse_moe"
        shapes[f"{block}.gate"] = (_EXPERTS, H)
        shapes |= {f"{block}.experts.{n}.{name}": shape for n in range(_EXPERTS) for name, shape in expert.items()}
    return shapes


def _random_weight(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns the tensors of a weight [N, K] by the suffixes of their names."""
    N, K = shape
    if kind == "int4":
        packed = torch.randint(-(2**31), 2**31, (N, K // 8), dtype=torch.int32, generator=generator)
        scales = torch.full((N, K // 32), 2.0**-8, dtype=torch.bfloat16)
        return {"weight_packed": packed, "weight_scale": scales, "weight_shape": torch.tensor(shape)}
    values = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    if kind == "int8":
        return {"weight": values, "weight_scale": torch.full((N, 1), 2.0**-12, dtype=torch.bfloat16)}
    return {"weight": values.bfloat16() / 4096}


def _reading(file: str, name: str) -> int:
    """Returns the bytes in the line `name` of a file of /proc/self."""
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="Planned and used memory.")
    parser.add_argument("--model", type=Path, help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--large", action="store_true", help="also models of 1.1 billion random weights")
    parser.add_argument("--measure", choices=FORMATS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.model or prepare()
    if args.measure:
        print(json.dumps(asdict(measure(folder, args.measure))))
        return
    from benchmarks.report import Machine  # imported here, because it draws plots with libraries that take memory

    machine = Machine.now()
    print(f"{machine.processor}, {machine.num_cores} cores\n")
    print("| model | weights | planned | used | planned / used | planned weights | peak of loading | peak / weights |")
    print("|---|---|---|---|---|---|---|---|")
    _print_rows(folder.name, folder)
    if args.large:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as temporary:
                num_layers = 4 if kind == "mixture" else 22
                folder = Path(temporary)
                write_random_model(folder, hidden_size=2048, num_layers=num_layers, vocab_size=32000, kind=kind)
                _print_rows(f"1.1B, random, {kind}", folder, FORMATS if kind == "dense" else ("auto",))


def _print_rows(name: str, folder: Path, formats: tuple[str, ...] = FORMATS) -> None:
    for weights in formats:
        found = measure_in_child(folder, weights)
        sizes = (found.planned, found.used, found.planned_weights, found.peak)
        planned, used, planned_weights, peak = (f"{size / 1e9:.2f}" for size in sizes)
        row: tuple[str, ...] = (name, weights, planned, used, f"{found.planned / found.used:.2f}")
        print(
            "|", " | ".join((*row, planned_weights, peak, f"{found.peak / found.planned_weights:.2f}")), "|", flush=True
        )


if __name__ == "__main__":
    main()
