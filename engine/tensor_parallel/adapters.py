"""LoRA adapters in tensor parallelism: rank 0 sends each adapter once to the other ranks.

The first matrix of an update (`LoraWeight.down`) is small, so every rank stores and applies all of it. Of the second
matrix (`LoraWeight.up`), a rank keeps only the outputs that it computes.

Shape letters: R the rank of an update, K its inputs, N its outputs.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.group import Group
from engine.tensor_parallel.messages import Kind, send
from kernels.linear import LinearWeight, pack, unpack
from kernels.lora import LoraLayer, LoraRun, LoraWeight

# maximum number of adapters kept, unless one pass uses more; a forgotten adapter is sent again when it is needed
_MAX_KEPT = 64
_PRODUCTS = ("qkv", "output", "gate_up", "down")
_ALIGNMENT = 8  # bytes


class KeptAdapters:
    """The adapters that a rank has received.

    All ranks use the adapters in the same order. So if a rank forgets an adapter, all ranks do.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._layers: OrderedDict[int, tuple[LoraLayer, ...]] = OrderedDict()

    def add(self, content: Tensor) -> None:
        """content: as in a message of the kind `ADAPTER`."""
        number, layers = _decoded(content)
        self._layers[number] = tuple(self._own_part(layer) for layer in layers)

    def runs(self, runs: Sequence[tuple[int, int, int]]) -> tuple[list[LoraRun], list[int]]:
        """Returns the runs of a pass with their adapters, and the numbers of the adapters that are now forgotten.

        runs: as in `PassMessage`.
        """
        numbers = {number for number, _, _ in runs}
        for number in sorted(numbers):
            self._layers.move_to_end(number)
        found = [LoraRun(first, count, self._layers[number]) for number, first, count in runs]
        num_forgotten = max(0, len(self._layers) - max(_MAX_KEPT, len(numbers)))
        return found, [self._layers.popitem(last=False)[0] for _ in range(num_forgotten)]

    def _own_part(self, layer: dict[str, tuple[Tensor, Tensor]]) -> LoraLayer:
        def part(product: str) -> LoraWeight | None:
            if product not in layer:
                return None
            down, up = layer[product]
            return LoraWeight(pack(down), pack(up[self._cut.product_outputs(product)]))

        return LoraLayer(qkv=part("qkv"), output=part("output"), gate_up=part("gate_up"), down=part("down"))


class SentAdapters:
    """The adapters that rank 0 has sent, with their numbers."""

    def __init__(self, group: Group, cut: Cut) -> None:
        self._group = group
        self._kept = KeptAdapters(cut)
        self._numbers: dict[int, int] = {}  # by the id of the layers
        # layers by number; holding this reference ensures that no other object gets the same id
        self._layers: dict[int, tuple[LoraLayer, ...]] = {}
        self._next = 0

    def number_of(self, layers: tuple[LoraLayer, ...]) -> int:
        """Returns the number of the adapter, after sending the adapter to the other ranks if they do not have it."""
        if id(layers) not in self._numbers:
            content = _encoded(self._next, layers)
            send(self._group, Kind.ADAPTER, content)
            self._kept.add(content)
            self._numbers[id(layers)], self._layers[self._next] = self._next, layers
            self._next += 1
        return self._numbers[id(layers)]

    def runs(self, runs: Sequence[tuple[int, int, int]]) -> list[LoraRun]:
        found, forgotten = self._kept.runs(runs)
        for number in forgotten:
            del self._numbers[id(self._layers.pop(number))]
        return found


def _encoded(number: int, layers: Sequence[LoraLayer]) -> Tensor:
    """Returns bytes: the length of the description, the description in JSON, and the weights."""
    described: list[tuple[int, str, int, int, int]] = []  # layer, product, R, K, N
    weights: list[Tensor] = []
    for index, layer in enumerate(layers):
        for product in _PRODUCTS:
            update: LoraWeight | None = getattr(layer, product)
            if update is not None:
                described.append((index, product, *_shape(update.down), update.up.out_features))
                weights += [unpack(update.down).flatten(), unpack(update.up).flatten()]
    dtype = str(weights[0].dtype if weights else torch.float32).removeprefix("torch.")
    text = json.dumps({"number": number, "layers": len(layers), "dtype": dtype, "updates": described}).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = torch.frombuffer(bytearray(len(text).to_bytes(_ALIGNMENT, "little") + text), dtype=torch.uint8)
    return torch.cat([head, *(weight.view(torch.uint8) for weight in weights)])


def _decoded(content: Tensor) -> tuple[int, list[dict[str, tuple[Tensor, Tensor]]]]:
    """Returns the adapter's number and, for each layer and linear product, the matrices down [R, K] and up [N, R]."""
    length = int.from_bytes(bytes(content[:_ALIGNMENT].tolist()), "little")
    head = json.loads(bytes(content[_ALIGNMENT : _ALIGNMENT + length].tolist()))
    numbers = content[_ALIGNMENT + length :].view(getattr(torch, head["dtype"]))
    layers: list[dict[str, tuple[Tensor, Tensor]]] = [{} for _ in range(head["layers"])]
    for index, product, R, K, N in head["updates"]:
        down, up, numbers = numbers.split((R * K, N * R, len(numbers) - R * K - N * R))
        layers[index][product] = down.view(R, K), up.view(N, R)
    return head["number"], layers


def _shape(weight: LinearWeight) -> tuple[int, int]:
    return weight.out_features, weight.in_features
