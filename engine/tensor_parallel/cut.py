"""Decides which outputs of each product a rank computes.

Every product is cut by its outputs and never by its inputs. Each output is therefore summed by one rank, in the same
order as by a single process, and the gathered outputs have the same bits at every degree. A sum of partial results of
several ranks would have other bits.

A rank has whole KV heads with their query heads. If there are more ranks than KV heads, several ranks share a KV head:
each of them stores its keys and values, and they divide its query heads among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import TensorParallelUnsupported
from workers.model_sizes import OUTPUT_UNIT, VOCABULARY_UNIT, share

# products with one group of outputs per head; the last two are DeepSeek's
_HEADS = frozenset({"q_proj", "q_b_proj", "kv_b_proj"})
_KV_HEADS = frozenset({"k_proj", "v_proj"})
_INTERMEDIATE = frozenset({"gate_proj", "up_proj", "w1", "w3"})
_HIDDEN = frozenset({"o_proj", "down_proj", "w2"})


@dataclass(frozen=True, slots=True)
class Cut:
    """The outputs that belong to `rank` if a model is cut into `degree` parts."""

    config: ModelConfig
    rank: int
    degree: int

    def __post_init__(self) -> None:
        """Raises: TensorParallelUnsupported: a rank would have nothing to do, or a head would be cut."""
        config, degree = self.config, self.degree
        sizes = {"hidden size": (config.hidden_size, OUTPUT_UNIT), "vocabulary": (config.vocab_size, VOCABULARY_UNIT)}
        if config.mixture is None or config.mixture.dense_layers:
            sizes["intermediate size"] = (config.intermediate_size, OUTPUT_UNIT)
        if (experts := config.mixture or config.experts) is not None:
            sizes["experts' intermediate size"] = (experts.intermediate_size, OUTPUT_UNIT)
        for name, (size, unit) in sizes.items():
            if -(-size // unit) < degree:
                raise TensorParallelUnsupported(
                    f"the {name} of {size} has fewer than {degree} parts of {unit}: use a smaller --tensor-parallel"
                )
        if degree > config.num_kv_heads and (
            degree % config.num_kv_heads or self._heads_per_kv_head % (degree // config.num_kv_heads)
        ):
            raise TensorParallelUnsupported(
                f"{config.num_heads} query heads on {config.num_kv_heads} KV heads cannot be divided by {degree}: use "
                f"--tensor-parallel of at most {config.num_kv_heads}, or a multiple of it that divides the query heads"
            )

    @property
    def _heads_per_kv_head(self) -> int:
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def kv_heads(self) -> range:
        num_kv_heads = self.config.num_kv_heads
        if self.degree <= num_kv_heads:
            return self.part(num_kv_heads, 1)
        first = self.rank // (self.degree // num_kv_heads)
        return range(first, first + 1)

    @property
    def heads(self) -> range:
        """The query heads of `kv_heads`, or this rank's part of them."""
        per_kv_head, kv_heads = self._heads_per_kv_head, self.kv_heads
        if self.degree <= self.config.num_kv_heads:
            return range(kv_heads.start * per_kv_head, kv_heads.stop * per_kv_head)
        num_sharing = self.degree // self.config.num_kv_heads
        count = per_kv_head // num_sharing
        first = kv_heads.start * per_kv_head + self.rank % num_sharing * count
        return range(first, first + count)

    @property
    def hidden(self) -> range:
        return self.part(self.config.hidden_size, OUTPUT_UNIT)

    @property
    def vocabulary(self) -> range:
        return self.part(self.config.vocab_size, VOCABULARY_UNIT)

    def part(self, size: int, unit: int) -> range:
        """Returns this rank's part of `size` outputs."""
        return share(size, unit, self.rank, self.degree)

    def of_rank(self, rank: int) -> "Cut":
        return Cut(self.config, rank, self.degree)

    def all_ranks(self) -> list["Cut"]:
        return [self.of_rank(rank) for rank in range(self.degree)]

    def outputs(self, name: str, size: int) -> slice:
        """Returns this rank's outputs of the weight or bias `name` of a checkpoint, which has `size` outputs.

        Norms, routers and the products that compute latents are not cut.
        """
        module = name.split(".")[-2]
        if module in _HEADS:
            D = size // self.config.num_heads
            return slice(self.heads.start * D, self.heads.stop * D)
        if module in _KV_HEADS:
            D = size // self.config.num_kv_heads
            return slice(self.kv_heads.start * D, self.kv_heads.stop * D)
        if module in _INTERMEDIATE or module in _HIDDEN:
            part = self.part(size, OUTPUT_UNIT)
            return slice(part.start, part.stop)
        return slice(None)

    def product_outputs(self, product: str) -> Tensor:
        """Returns int64 indices of this rank's outputs of a fused product of a dense layer (`LoraLayer`)."""
        config, D = self.config, self.config.head_dim
        query, keys = config.num_heads * D, config.num_kv_heads * D
        modules: dict[str, Sequence[tuple[str, int]]] = {
            "qkv": (("q_proj", query), ("k_proj", keys), ("v_proj", keys)),
            "output": (("o_proj", config.hidden_size),),
            "gate_up": (("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size)),
            "down": (("down_proj", config.hidden_size),),
        }
        indices, first = [], 0
        for module, size in modules[product]:
            indices.append(torch.arange(first, first + size)[self.outputs(f"{module}.weight", size)])
            first += size
        return torch.cat(indices)
