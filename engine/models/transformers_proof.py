"""Tests that a model of `transformers` must pass before it is served.

1. Its logits equal those of transformers, up to the precision of the dtype, so no operation is missing.
2. It uses only the matrix products of kernels/, because in torch's own products the order of additions
   depends on the number of rows.
3. The hidden states of a text have the same bits whether it is read in one pass, in chunks, or together with rows of
   another text.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.errors import ModelNotLoadable
from engine.models.reading import read_in_chunks
from engine.models.transformers_model import TransformersModel

_LENGTH = 80  # tokens of the text; more than 64, so that a pass over it is padded to 128 rows and a chunk to 64
_CHUNKS = (1, 2, 15, 62)  # row counts below the padding size; their sum is _LENGTH
# Root mean square of the difference, relative to the logits' standard deviation per row. SmolLM2-135M (30 layers) has
# 8e-6 in float32 and 0.064 in bfloat16.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}
_PRODUCTS = (
    *("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "_grouped_mm"),
    *("_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu"),
)


def probe_tokens(vocab_size: int, max_positions: int) -> Tensor:
    """Returns the token ids of a fixed text, [T] int64."""
    return torch.randint(vocab_size, (min(_LENGTH, max_positions),), generator=torch.Generator().manual_seed(0))


def prove(model: TransformersModel, expected: Tensor) -> None:
    """Runs the tests of this module on a model.

    expected: [T, V] float32, logits of transformers for `probe_tokens`; V is the vocabulary size.
    Raises: ModelNotLoadable: a test fails.
    """
    token_ids = probe_tokens(model.config.vocab_size, model.max_positions).to(model.device)
    length = token_ids.shape[0]
    with _KernelProductsOnly():  # type: ignore[no-untyped-call]
        whole, cache = read_in_chunks(model, token_ids, [length])
        logits = model.logits(whole)
    deviation = (expected - expected.mean(-1, keepdim=True)).pow(2).mean().sqrt()
    error = float((logits - expected).pow(2).mean().sqrt() / deviation)
    if not error <= _TOLERANCE[model.dtype]:
        raise ModelNotLoadable(f"the logits of a {model.config.model_type} differ from transformers' by {error:.2g}")
    for num_other_rows in (0, 5):
        pieces, other_cache = read_in_chunks(
            model, token_ids, _CHUNKS, num_other_rows=num_other_rows, as_tree=num_other_rows > 0
        )
        # the logits of the first and the last row, computed one row at a time
        single_rows = torch.cat([model.logits(row) for row in pieces[:: length - 1].split(1)])
        same = torch.equal(pieces, whole) and torch.equal(single_rows, logits[:: length - 1])
        stored = zip((*cache.keys, *cache.values), (*other_cache.keys, *other_cache.values), strict=True)
        if not same or not all(torch.equal(first[:length], second[:length]) for first, second in stored):
            raise ModelNotLoadable(f"the bits of a {model.config.model_type} depend on the other rows of a pass")


class _KernelProductsOnly(TorchDispatchMode):
    """Raises ModelNotLoadable for a matrix product outside of kernels/."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS and not _called_from_kernels():
            left_factor = args[1] if name.startswith(("add", "badd")) else args[0]
            if left_factor.shape[-1] != 1:  # a sum of one term has no order; rotary angles are computed this way
                raise ModelNotLoadable(f"it computes a product with torch ({name}), whose bits depend on other rows")
        return func(*args, **(kwargs or {}))


def _called_from_kernels() -> bool:
    """Returns whether the call comes from the reference implementations in kernels/."""
    frame = sys._getframe(2)  # the caller of __torch_dispatch__
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").startswith("kernels."):
            return True
        frame = frame.f_back
    return False
