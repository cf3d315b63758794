"""Makes a model of `transformers` compute rows, each with the same bits as if it was the only row of the pass.

To transformers, a pass is one sequence [1, P]: M rows, padded to P, a multiple of 64. Attention and matrix products,
whose result for a row could depend on other rows, are replaced and process only the M rows:

    attention      writes keys and values to their slots, then kernels.attention (transformers' attention interface)
    masks          only tell attention the size of a layer's sliding window      (transformers' mask interface)
    nn.Linear      kernels.linear                                                (modules are replaced)
    experts        kernels.linear on an expert's rows; kernels.experts for gpt-oss
                                                                                 (transformers' experts interface)
    F.linear       torch's F.linear on 16 rows at a time                         (for routers, which call it directly)

The other operations of a decoder process each element or each row separately. Their results still depend on the number
of rows: torch uses vector instructions for groups of elements and other instructions for the remaining elements, and
splits work between threads at any element. (In float32, 4 % of the results of silu differ.) So rows are padded to a
multiple of 64, twice the number of elements in the widest vector, and a forward pass uses one thread.

Other shape letters: H the hidden size, K the experts per token, Hq and Hkv the numbers of query and key-value heads,
D the elements of a head.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from engine.errors import ModelNotLoadable
from kernels.attention import AttentionRows, attention, last_keys
from kernels.decoder import DecoderRows
from kernels.experts import ClampedGate, Expert, Experts, mix_experts
from kernels.linear import LinearWeight, linear, linear_reference, pack
from kernels.lora import LoraRun, ModuleUpdates, lora
from kernels.memory import trim_heap

NAME = "slipstream_rows"  # key in transformers' registries
_ROW_MULTIPLE = 64  # passes are padded to a multiple of this, see the module's docstring
_UNSUPPORTED = {"softcap": "a soft cap on scores", "position_bias": "position bias"}
_EXPERT_TRAITS = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
_GPT_OSS_TRAITS = {"has_gate": True, "has_bias": True, "is_transposed": True, "is_concatenated": False}
_GPT_OSS_WEIGHTS = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
_GPT_OSS_GATE = ("alpha", "limit")


@dataclass(slots=True)
class RowPass:
    """State of a running pass.

    keys, values: per layer [slots, Hkv, D].
    num_layers: number of layers whose attention has run. num_windowed: number of these layers with a sliding window.
    taps: for each index in tap_layers, the tap [M, H] (engine/models/base.py).
    lora_runs: as in `Rows`.
    """

    rows: DecoderRows
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    tap_layers: frozenset[int] = frozenset()
    lora_runs: tuple[LoraRun, ...] = ()
    num_layers: int = 0
    num_windowed: int = 0
    windowed_rows: dict[int, AttentionRows] = field(default_factory=dict)
    taps: dict[int, Tensor] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.rows.positions.shape[0]

    def rows_within(self, window: int) -> AttentionRows:
        """Returns the rows with at most `window` keys each; computed once for all layers."""
        if window not in self.windowed_rows:
            self.windowed_rows[window] = last_keys(self.rows.attention, window)
        return self.windowed_rows[window]


CURRENT: ContextVar[RowPass | None] = ContextVar("CURRENT", default=None)
_NUM_ROWS: ContextVar[tuple[int, int]] = ContextVar("_NUM_ROWS", default=(-1, -1))  # (without padding, with padding)


def padded_rows(num_rows: int) -> int:
    """Rounds a number of rows up to a multiple of 64."""
    return -(-num_rows // _ROW_MULTIPLE) * _ROW_MULTIPLE


class RowProducts(TorchFunctionMode):
    """Context of a forward pass: sets the number of rows, limits torch to one thread and replaces F.linear."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self._sizes = (num_rows, padded_rows(num_rows))

    def __enter__(self) -> "RowProducts":
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._token = _NUM_ROWS.set(self._sizes)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _NUM_ROWS.reset(self._token)
        torch.set_num_threads(self._threads)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            return _tiled_linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _tiled_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # torch's name
    x = input.reshape(-1, weight.shape[1])
    return linear_reference(x, weight, bias).to(input.dtype).view(*input.shape[:-1], weight.shape[0])


class RowLinear(nn.Module):
    """Replaces an nn.Linear or a Conv1D.

    dtype: dtype of the output; None: the dtype of the input.
    place: the layer's index and the module's name, under which LoRA updates are found; None: no LoRA updates.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._weight = pack(weight.detach(), None if bias is None else bias.detach())
        self._dtype = dtype
        self.in_features, self.out_features = self._weight.in_features, self._weight.out_features
        self.place: tuple[int, str] | None = None

    @property
    def input_dtype(self) -> torch.dtype:
        return self._weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        flat, (num_rows, padded) = x.reshape(-1, self.in_features), _NUM_ROWS.get()
        count = num_rows if flat.shape[0] == padded else flat.shape[0]  # an input of another size has no padding
        rows, current = flat[:count].contiguous(), CURRENT.get()
        out = linear(rows, self._weight)
        if self.place is not None and current is not None:
            layer, name = self.place
            updates = ((run, run.layers[layer]) for run in current.lora_runs)
            lora(rows, out, [(run, of.modules.get(name)) for run, of in updates if isinstance(of, ModuleUpdates)])
        out = out.to(self._dtype or x.dtype)
        return functional.pad(out, (0, 0, 0, flat.shape[0] - count)).view(*x.shape[:-1], self.out_features)


def row_mask(*, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> Tensor | None:
    """Implements transformers' mask interface. Returns the layer's sliding window for `row_attention`, or None.

    Raises: ModelNotLoadable: the model changes the causal mask in another way.
    """
    if use_vmap:
        raise ModelNotLoadable("attention with a special mask is not supported")
    return None if local_size is None else torch.tensor(local_size)


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Implements transformers' attention interface. Returns [1, P, Hq, D] and no attention weights.

    query: [1, Hq, P, D].
    key, value: [1, Hkv, P, D].
    """
    current = CURRENT.get()
    assert current is not None  # TransformersModel.forward sets it
    for name, meaning in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise ModelNotLoadable(f"attention with {meaning} ({name}) is not supported")
    sinks = kwargs.get("s_aux")
    if sinks is not None and query.device.type != "cpu":
        raise ModelNotLoadable("attention sinks (s_aux) are served on CPUs only")
    windowed = attention_mask is not None and attention_mask.dim() == 0  # from `row_mask`
    if (attention_mask is not None and not windowed) or key.shape != value.shape:
        raise ModelNotLoadable(
            "attention with a special mask, or with values of another shape than keys, is not supported"
        )
    M, layer, D = current.num_rows, current.num_layers, query.shape[-1]
    current.num_layers += 1
    keys, values = current.keys[layer], current.values[layer]
    keys[current.rows.slots] = key[0, :, :M].transpose(0, 1).to(keys.dtype)
    values[current.rows.slots] = value[0, :, :M].transpose(0, 1).to(values.dtype)
    q = query[0, :, :M].transpose(0, 1).float().contiguous()  # [M, Hq, D]
    if scaling is not None and scaling != D**-0.5:
        q *= scaling * D**0.5  # `attention` divides by sqrt(D)
    rows = current.rows.attention
    if windowed:
        assert attention_mask is not None
        current.num_windowed += 1
        rows = current.rows_within(int(attention_mask))
    out = attention(q, keys, values, rows, None if sinks is None else sinks.float()).to(query.dtype)
    return functional.pad(out, (0, 0, 0, 0, 0, query.shape[2] - M)).unsqueeze(0), None


@dataclass(frozen=True, slots=True)
class _PackedExpert:
    gate_up: LinearWeight
    down: LinearWeight


def row_experts(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Implements transformers' experts interface. Returns [P, H].

    hidden_states: [P, H].
    top_k_index, top_k_weights: [P, K], the experts of each row and their weights.
    """
    num_rows, padded = _NUM_ROWS.get()
    count = num_rows if hidden_states.shape[0] == padded else hidden_states.shape[0]
    experts: Experts | list[_PackedExpert] = module.packed  # type: ignore[assignment]  # set by replace_products
    if isinstance(experts, Experts):
        chosen, weights = (choice[:count].contiguous() for choice in (top_k_index, top_k_weights.float()))
        mixed = mix_experts(hidden_states[:count].contiguous(), chosen, weights, experts)
        return functional.pad(mixed, (0, 0, 0, hidden_states.shape[0] - count)).to(hidden_states.dtype)
    expert_ids, out = top_k_index[:count], torch.zeros(hidden_states.shape, device=hidden_states.device)
    for index in expert_ids.unique().tolist():  # ascending, so that a row's experts are always added in the same order
        rows, choices = (expert_ids == index).nonzero(as_tuple=True)
        expert, n = experts[index], rows.shape[0]
        inner = linear(hidden_states[rows], expert.gate_up).to(hidden_states.dtype)
        inner = functional.pad(inner, (0, 0, 0, padded_rows(n) - n))
        inner = module._apply_gate(inner)[:n].contiguous()  # type: ignore[operator]
        out[rows] += linear(inner, expert.down) * top_k_weights[rows, choices].float().unsqueeze(1)
    return out.to(hidden_states.dtype)


def register() -> None:
    """Registers NAME in transformers; repeated calls have no effect."""
    AttentionInterface.register(NAME, row_attention)
    AttentionMaskInterface.register(NAME, row_mask)
    ALL_EXPERTS_FUNCTIONS.register(NAME, row_experts)


def is_replaced(module: nn.Module) -> bool:
    """Returns whether `replace_products` replaces the module, or packs its experts."""
    return type(module) in (nn.Linear, Conv1D) or isinstance(getattr(module, "gate_up_proj", None), nn.Parameter)


def replace_products(model: PreTrainedModel) -> None:
    """Replaces every linear layer and packs the experts, one at a time. The head then returns float32.

    Raises: ModelNotLoadable: `row_experts` does not support the model's experts.
    """
    head = model.get_output_embeddings()
    # Replaced modules must not stay in a list: their weights would be freed only after the last one is replaced.
    for module in [module for module in model.modules() if not is_replaced(module)]:
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                dtype = torch.float32 if child is head else None
                setattr(module, name, RowLinear(child.weight, child.bias, dtype))
            elif type(child) is Conv1D:
                setattr(module, name, RowLinear(child.weight.t().contiguous(), child.bias))
            elif isinstance(getattr(child, "gate_up_proj", None), nn.Parameter):
                _pack_experts(child)
                trim_heap()  # for every layer: the peak would otherwise be twice the size of the weights
    trim_heap()


def _pack_experts(module: nn.Module) -> None:
    traits = {name: getattr(module, name, None) for name in _EXPERT_TRAITS}
    if traits == _GPT_OSS_TRAITS and all(hasattr(module, name) for name in _GPT_OSS_GATE):
        _pack_clamped_experts(module)
        return
    if traits != _EXPERT_TRAITS or getattr(module, "has_post_expert_norm", False):
        raise ModelNotLoadable(f"experts like {type(module).__name__} are not supported: {traits}")
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()  # type: ignore[operator]
    packed = [_PackedExpert(pack(first), pack(second)) for first, second in zip(gate_up, down, strict=True)]
    module.packed = packed  # type: ignore[assignment]
    del module.gate_up_proj, module.down_proj


def _pack_clamped_experts(module: nn.Module) -> None:
    """Packs experts like those of gpt-oss, whose weights are transposed and whose gate and up columns alternate."""
    tensors = (getattr(module, name).detach() for name in _GPT_OSS_WEIGHTS)
    packed = [
        Expert(
            pack(_gates_first(gate_up).t().contiguous(), _gates_first(gate_up_bias)),
            pack(down.t().contiguous(), down_bias),
        )
        for gate_up, gate_up_bias, down, down_bias in zip(*tensors, strict=True)
    ]
    gate = ClampedGate(*(getattr(module, name) for name in _GPT_OSS_GATE))
    module.packed = Experts(packed, gate)  # type: ignore[assignment]
    for name in _GPT_OSS_WEIGHTS:
        delattr(module, name)


def _gates_first(columns: Tensor) -> Tensor:
    return torch.cat((columns[..., ::2], columns[..., 1::2]), dim=-1)
