"""Tests on the machine at hand that a row has the same bits whatever the other rows of its pass are.

Speculation leaves the output unchanged only if rows are invariant in this sense (docs/design.md, "Equal logits"). The
test suite tests row invariance on the machines that run the suite. This module tests it at start-up on the device that
will serve, with the model's own weights: every product alone, and one layer of each shape, which reads a text in one
pass, in chunks, in a batch and as draft trees.

The row counts are those at which a kernel changes how it divides the rows; the comment at `_ROW_COUNTS` says why no
other count can differ. The result depends on the shapes and not on the values of the weights. A success is therefore
stored in the user's cache folder, by build, device, dtype and shapes. A failure is not stored, so the next start tests
again.
"""

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.base import Model
from engine.models.deepseek import Deepseek
from engine.models.deepseek_weights import DeepseekLayer, ExpertsWeights
from engine.models.dense import Decoder
from engine.models.reading import read_in_chunks
from engine.tensor_parallel.leader import ShardedModel
from kernels.cpu.library import cache_folder, library, processor, uses_amx
from kernels.decoder import LayerWeights
from kernels.experts import Expert
from kernels.linear import LinearWeight, linear
from kernels.lm_head import Head, best_tokens

logger = logging.getLogger(__name__)

TestedModel = Decoder | Deepseek | ShardedModel

_CACHE = "row_invariance"
# With these counts, the kernels divide rows in every way that can occur for any number of rows.
# CPU: a product is computed in tiles of 1 to 8 rows. Each height of a tile has its own compiled variant, and the counts
# of 1 to 8 run every variant. A larger pass is a sequence of such tiles. Without the C kernels, tiles have 16 rows.
# CUDA: a program computes 1, 2, 4 or 8 tiles of 16 rows; the counts run each number of tiles with its last tile full
# and partly filled, and more than one program. The pass over the whole text has more rows than attention processes at
# a time (256). The text is also longer than the first split of a prefix (256 positions) together with a tail (127).
_ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
_NUM_OTHER_ROWS = 5
_TREE_DEPTHS = (1, 2, 3, 7, 8, 15, 16, 31)
_SOURCES = (
    *(("kernels", "*.py"), ("kernels", "*.c"), ("kernels", "*.h")),
    *(("engine/models", "*.py"), ("engine/tensor_parallel", "*.py")),
)
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class RowInvariance:
    """exact: whether the test has passed for this model on this machine. reason: why not; None if exact."""

    exact: bool
    reason: str | None

    def __post_init__(self) -> None:
        if self.exact == (self.reason is not None):
            raise ValueError(f"reason must be given exactly if the test has not passed, got {self.reason!r}")


EXACT = RowInvariance(True, None)
NOT_TESTED = RowInvariance(False, "the test of row invariance did not run")


def check_row_invariance(model: Model, *, folder: Path | None = None) -> RowInvariance:
    """Tests the model, unless a stored result says that an equal model has passed on this machine. Never raises.

    folder: where successes are stored; None: in the user's cache folder.
    """
    if not isinstance(model, TestedModel):
        return EXACT  # a model of transformers is only loaded if it passes such a test (models/transformers_proof.py)
    try:
        key = _key(model)
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        path = (folder or cache_folder(_CACHE)) / f"{digest[:20]}.json"
        if _has_passed(path, key):
            return EXACT
        fault = find_fault(model)
    except Exception as error:  # the model is served even if its test cannot run
        logger.exception("the test of row invariance failed to run")
        return RowInvariance(False, f"the test of row invariance failed to run ({type(error).__name__})")
    if fault is not None:
        logger.error("rows are not invariant on this machine: %s", fault)
        return RowInvariance(False, fault)
    _store(path, key)
    return EXACT


@torch.inference_mode()
def find_fault(model: TestedModel) -> str | None:
    """Returns a sentence about the first product or layer whose rows depend on the other rows, or None."""
    for name, weight in _products(model).items():
        if fault := _product_fault(name, weight, model.device):
            return fault
    if model.device.type == "cuda" and (fault := _head_fault(model.weights.lm_head_packed, model.device)):
        return fault
    return _layers_fault(model.with_layers(_distinct_layers(model)))


def _product_fault(name: str, weight: LinearWeight, device: torch.device) -> str | None:
    x = _random_rows(max(_ROW_COUNTS), weight, device)
    expected = linear(x, weight)
    for count in _ROW_COUNTS:  # takes the last rows, so that a row's place in a tile differs between the counts
        if not torch.equal(linear(x[-count:], weight), expected[-count:]):
            shape = f"[{weight.out_features}, {weight.in_features}]"
            return f"the product {name} {shape} gives a row other bits among {count} rows than among {max(_ROW_COUNTS)}"
    return None


def _head_fault(weight: LinearWeight, device: torch.device) -> str | None:
    """Tests the output head's kernel for graph decoding, which chooses tokens without storing the logits."""
    x, head = _random_rows(max(_ROW_COUNTS), weight, device), Head(data=weight.data, scales=weight.scales)
    expected = best_tokens(x, head, 1)
    for count in _ROW_COUNTS:
        best = best_tokens(x[-count:], head, 1)
        same_tokens = torch.equal(best.tokens, expected.tokens[-count:])
        if not same_tokens or not torch.equal(best.values, expected.values[-count:]):
            return f"the fused lm_head gives a row other bits among {count} rows than among {max(_ROW_COUNTS)}"
    if not torch.equal(expected.values.squeeze(1), linear(x, weight, one_sum=True).amax(1)):
        return "the fused lm_head gives a row other logits than the product that stores them"
    return None


def _layers_fault(model: TestedModel) -> str | None:
    length = min(sum(_ROW_COUNTS), model.max_positions)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.config.vocab_size, (length,), generator=generator).to(model.device)
    others = min(_NUM_OTHER_ROWS, length)
    depths = _TREE_DEPTHS * (length // sum(_TREE_DEPTHS) + 1)
    whole, cache = read_in_chunks(model, token_ids, [length])
    readings = {
        "in chunks": read_in_chunks(model, token_ids, _ROW_COUNTS),
        "in a batch": read_in_chunks(model, token_ids, _ROW_COUNTS[::-1], num_other_rows=others),
        "as draft trees": read_in_chunks(model, token_ids, depths, num_other_rows=others, as_tree=True),
    }
    for name, (hidden, other_cache) in readings.items():
        stored = zip((*cache.keys, *cache.values), (*other_cache.keys, *other_cache.values), strict=True)
        if not torch.equal(hidden, whole) or not all(torch.equal(a[:length], b[:length]) for a, b in stored):
            return f"a layer gives rows other bits when they are read {name} than in one pass"
    return None


def _random_rows(count: int, weight: LinearWeight, device: torch.device) -> Tensor:
    """Returns random rows [count, K] in the dtype of the product's input."""
    rows = torch.randn(count, weight.in_features, generator=torch.Generator().manual_seed(0))
    return rows.to(device, weight.dtype)


def _distinct_layers(model: TestedModel) -> list[int]:
    """Returns the index of the first layer of each combination of product shapes."""
    first: dict[tuple[Any, ...], int] = {}
    for index, layer in enumerate(model.weights.layers):
        assert isinstance(layer, LayerWeights | DeepseekLayer)  # mypy joins the types of the two tuples to object
        first.setdefault(tuple((name, *_shape(weight)) for name, weight in _layer_products(layer)), index)
    return list(first.values())


def _products(model: TestedModel) -> dict[str, LinearWeight]:
    """Returns one product of each shape, by name."""
    found: dict[tuple[Any, ...], tuple[str, LinearWeight]] = {}
    for index in _distinct_layers(model):
        for name, weight in _layer_products(model.weights.layers[index]):
            found.setdefault(_shape(weight), (name, weight))
    head = model.weights.lm_head_packed
    found.setdefault(_shape(head), ("lm_head", head))
    return dict(found.values())


def _layer_products(layer: LayerWeights | DeepseekLayer) -> Iterator[tuple[str, LinearWeight]]:
    if isinstance(layer, LayerWeights):
        yield from layer.products.items()
        return
    attention = layer.attention
    if attention.query_down is not None:
        yield "query_down", attention.query_down
    yield from (("query", attention.query), ("latent", attention.latent), ("output", attention.output))
    yield from (("key_up", attention.key_up[0]), ("value_up", attention.value_up[0]))
    if isinstance(layer.mlp, ExpertsWeights):
        yield "routing", layer.mlp.routing.weight
        yield from _expert_products("expert", layer.mlp.experts.experts[0])
        yield from _expert_products("shared_expert", layer.mlp.shared)
    else:
        yield from _expert_products("mlp", layer.mlp)


def _expert_products(name: str, expert: Expert) -> Iterator[tuple[str, LinearWeight]]:
    yield from ((f"{name}.gate_up", expert.gate_up), (f"{name}.down", expert.down))


def _shape(weight: LinearWeight) -> tuple[int, int, str, str, bool]:
    return weight.out_features, weight.in_features, weight.format_name, str(weight.dtype), weight.bias is not None


def _key(model: TestedModel) -> dict[str, Any]:
    """Returns everything on which the result of the test depends, as JSON."""
    config, layout = model.config, model.config.cache_layout
    return {
        "build": _build_sha256(),
        "device": _device_name(model.device),
        "num_threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "model_type": config.model_type,
        "heads": [config.num_heads, config.num_kv_heads, config.head_dim, layout.num_heads, layout.key_width],
        "layers": [[[name, *_shape(w)] for name, w in _layer_products(model.weights.layers[i])]
                   for i in _distinct_layers(model)],
        "lm_head": list(_shape(model.weights.lm_head_packed)),
    }  # fmt: skip


@functools.cache
def _build_sha256() -> str:
    """Returns the SHA-256 of the sources, the name of the loaded C kernels, and the versions of torch and triton."""
    kernels = library()  # its name is derived from the C sources, the compiler and the processor
    digest = hashlib.sha256(repr((kernels and kernels._name, *map(_version, ("torch", "triton")))).encode())
    paths = [Path(__file__), *(path for folder, pattern in _SOURCES for path in (_ROOT / folder).rglob(pattern))]
    for path in sorted(paths):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return hashlib.sha256(repr((processor(), uses_amx())).encode()).hexdigest()


def _has_passed(path: Path, key: dict[str, Any]) -> bool:
    """Whether the file is a complete record of a success for this key; any other file is ignored."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and stored == {"key": key, "exact": True}


def _store(path: Path, key: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({"key": key, "exact": True}, file)
        os.replace(file.name, path)  # atomic: engines that start together may both store the result
    except OSError as error:
        logger.warning("the result of the test of row invariance cannot be stored: %s", error)
