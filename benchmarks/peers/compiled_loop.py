"""A greedy decoding loop like gpt-fast's: static KV cache, compiled layers, one graph per step.

The loop uses the weight tensors of our engine, so that both read the same bytes. All layers call one compiled function.
The whole step, including LM head and argmax, is captured into a CUDA graph.

Shape letters: B sequences, T new tokens per sequence, H hidden size, Hq query heads, Hkv key-value heads, D head size,
L maximum length of a sequence.

Source: gpt-fast, pytorch-labs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.config import ModelConfig
from engine.models.weights import DecoderWeights
from kernels.decoder import LayerWeights
from kernels.linear import LinearWeight


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Applies the rotary embedding to x [B, T, heads, D]. cosine, sine: [T, D / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(x.dtype)


def _unpacked(weight: LinearWeight) -> tuple[Tensor, Tensor | None]:
    if weight.packed or weight.scales is not None:
        raise ValueError("the weights must be neither packed for the CPU nor quantized")
    return weight.data, weight.bias


Layer = Callable[..., Tensor]


def make_layer(num_heads: int, num_kv_heads: int, D: int, eps: float) -> Layer:
    """Returns a function that computes a layer. The weights are arguments, so it is compiled once for all layers."""
    group = num_heads // num_kv_heads  # query heads that share keys

    def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Computes the attention of q [B, T, Hq, D] as [B, T, Hq * D]. mask: [T, L] bool, True if a query sees a key.

        The query heads that share a key head are rows of one matrix product, so that the keys are read once.
        """
        B, T = q.shape[:2]
        rows = q.view(B, T, num_kv_heads, group, D).permute(0, 2, 3, 1, 4).reshape(B, num_kv_heads, group * T, D)
        scores = (rows @ keys.transpose(-1, -2)).float() * D**-0.5  # [B, Hkv, group T, L]
        masked = scores.view(B, num_kv_heads, group, T, -1).masked_fill(~mask, float("-inf"))
        weights = masked.softmax(-1).to(q.dtype).view(B, num_kv_heads, group * T, -1)
        out: Tensor = (weights @ values).view(B, num_kv_heads, group, T, D)
        return out.permute(0, 3, 1, 2, 4).reshape(B, T, num_heads * D)

    def layer(
        x: Tensor,
        weights: dict[str, Any],
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        cosine: Tensor,
        sine: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Computes one layer: x [B, T, H] -> [B, T, H].

        keys, values: [B, Hkv, L, D], the KV cache. The new keys and values are written at `positions` [T].
        mask: [T, L] bool, True if a query sees a key.
        """
        B, T, _ = x.shape
        normed = _norm(x, weights["norms"][0], eps)
        heads = _linear(normed, *weights["qkv"]).view(B, T, num_heads + 2 * num_kv_heads, D)
        q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=2)
        if weights["head_norms"] is not None:
            q, k = _norm(q, weights["head_norms"][0], eps), _norm(k, weights["head_norms"][1], eps)
        q, k = _rotated(q, cosine, sine), _rotated(k, cosine, sine)
        keys.index_copy_(2, positions, k.transpose(1, 2))
        values.index_copy_(2, positions, v.transpose(1, 2))
        x = x + _linear(attend(q, keys, values, mask), *weights["output"])
        gate, up = _linear(_norm(x, weights["norms"][1], eps), *weights["gate_up"]).chunk(2, dim=-1)
        return x + _linear(functional.silu(gate) * up, *weights["down"])

    return layer


class CompiledLoop:
    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        tables: tuple[Tensor, Tensor],
        *,
        batch_size: int,
        max_seq_len: int,
        compiled: bool = True,
    ) -> None:
        """`compiled`: compile the layer, and on CUDA also capture the step into a graph."""
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._config, self._weights, self._on_graph = config, weights, compiled and device.type == "cuda"
        self._cosines, self._sines = (table[:max_seq_len].to(device) for table in tables)
        shape = (config.num_layers, batch_size, config.num_kv_heads, max_seq_len, config.head_dim)
        self._keys, self._values = torch.zeros(2, *shape, dtype=dtype, device=device)
        self._mask = torch.ones(max_seq_len, max_seq_len, dtype=torch.bool, device=device).tril()
        self.tokens = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._heads = _unpacked(weights.lm_head_packed)
        self._eager = make_layer(config.num_heads, config.num_kv_heads, config.head_dim, config.norm_eps)
        self._layer = self._eager
        if compiled:
            options: dict[str, Any] = {"coordinate_descent_tuning": True}
            self._layer = torch.compile(self._eager, fullgraph=True, dynamic=False, options=options)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def start(self, prompts: Tensor) -> None:
        """Reads prompts [B, T] int64 and stores the first token of each answer in `tokens`."""
        positions = torch.arange(prompts.shape[1], device=prompts.device)
        self._next(prompts, positions, self._eager)
        self._position.fill_(prompts.shape[1])

    @torch.no_grad()
    def step(self) -> None:
        """Computes the next token of each answer."""
        if not self._on_graph:
            self._advance()
            return
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Captures the step. Its warm-up generates tokens, so the state is restored afterwards."""
        before = self.tokens.clone(), self._position.clone()
        side_stream = torch.cuda.Stream()  # work must be warmed up on a side stream before it is captured
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):
                self._advance()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        self.tokens.copy_(before[0])
        self._position.copy_(before[1])
        self._graph = graph

    def _advance(self) -> None:
        self._next(self.tokens, self._position, self._layer)
        self._position += 1

    def _next(self, tokens: Tensor, positions: Tensor, layer: Layer) -> None:
        x = self._weights.embedding[tokens]
        cosine, sine, mask = self._cosines[positions], self._sines[positions], self._mask[positions]
        for index, weights in enumerate(self._weights.layers):
            cache = self._keys[index], self._values[index]
            x = layer(x, self._arguments(weights), *cache, positions, cosine, sine, mask)
        last = _norm(x[:, -1], self._weights.final_norm, self._config.norm_eps)
        self.tokens.copy_(_linear(last, *self._heads).argmax(-1, keepdim=True))

    @staticmethod
    def _arguments(layer: LayerWeights) -> dict[str, Any]:
        norms = layer.head_norms
        return {
            "norms": (layer.input_norm, layer.post_norm),
            "head_norms": None if norms is None else (norms.query, norms.key),
            **{name: _unpacked(getattr(layer, name)) for name in ("qkv", "output", "gate_up", "down")},
        }
