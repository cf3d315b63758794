"""Plans the memory of the training of an adapter. The plan is a lower bound: it leaves out the activations, whose size
depends on the rows."""

from typing import Literal

from pydantic import Field

from control.core.api.errors import ApiError
from control.core.api.schemas import ResponseModel
from control.models.adapters.lora import MAX_RANK
from control.models.catalog.models import BaseModel
from control.models.engines.devices import DeviceKind, device_kinds
from control.models.engines.planning import sizes_of
from workers.contracts import MAX_ROWS
from workers.planning import FineTuningParts, fine_tuning_parts

_RANK = "method.supervised.hyperparameters.lora_rank"


class FineTuningMemory(ResponseModel):
    weights: int = Field(description="The model's weights in float32.")
    adapter: int = Field(description="The adapter's weights, their gradients and the optimizer's two moments.")
    runtime: int


class FineTuningDevicePlan(ResponseModel):
    """Whether the training fits one device of this kind."""

    device_kind: str = Field(description="`cuda` or `cpu`.")
    fits: bool | None = Field(description="Null: unknown. True: it may fit; activations are not planned.")
    memory_bytes: int | None = Field(description="Memory of the device. Null: the operators have not stated it.")
    parts: FineTuningMemory | None = Field(description="Bytes that are needed at least. Null: unknown.")
    max_lora_rank: int | None = Field(description="The largest rank that may fit; 0: none. Null: unknown.")


class FineTuningPlan(ResponseModel):
    object: Literal["fine_tuning.plan"] = "fine_tuning.plan"
    devices: list[FineTuningDevicePlan] = Field(description="One for each kind of device of the installation.")


def fine_tuning_plan(base_model: BaseModel, *, rank: int) -> FineTuningPlan:
    """Raises: ApiError: 400, the training fits on no kind of device; the message says what would fit."""
    devices = [_on(device, base_model, rank) for device in device_kinds()]
    if all(device.fits is False for device in devices):
        raise _refusal(devices, base_model, rank)
    return FineTuningPlan(devices=devices)


def fine_tuning_memory_needed(base_model: BaseModel, *, rank: int) -> dict[str, int]:
    """Returns, for each kind of device, the bytes of memory that it must have at least; 0: unknown."""
    sizes = sizes_of(base_model)
    return {kind: 0 if sizes is None else fine_tuning_parts(sizes, rank=rank, device=kind).total for kind in MAX_ROWS}


def _on(device: DeviceKind, base_model: BaseModel, rank: int) -> FineTuningDevicePlan:
    sizes, memory_bytes = sizes_of(base_model), device.memory_bytes
    parts = None if sizes is None else fine_tuning_parts(sizes, rank=rank, device=device.name)
    fits = max_rank = None
    if parts is not None and memory_bytes is not None:
        fits, max_rank = parts.total <= memory_bytes, _max_rank(parts, memory_bytes, rank)
    return FineTuningDevicePlan(
        device_kind=device.name,
        fits=fits,
        memory_bytes=memory_bytes,
        parts=None if parts is None else FineTuningMemory.from_row(parts),
        max_lora_rank=max_rank,
    )


def _max_rank(parts: FineTuningParts, memory_bytes: int, rank: int) -> int:
    return min(MAX_RANK, max(0, memory_bytes - parts.weights - parts.runtime) * rank // parts.adapter)


def _refusal(devices: list[FineTuningDevicePlan], base_model: BaseModel, rank: int) -> ApiError:
    """Names a rank that would fit; if none would, the memory that a device needs."""
    found = [(d.device_kind, d.parts, d.memory_bytes, d.max_lora_rank) for d in devices]
    on_each = " ".join(
        f"A {kind} device has {_gb(memory)}, and the training needs at least {_gb(_total(parts))}: model in float32 "
        f"{_gb(parts.weights)}, adapter and optimizer {_gb(parts.adapter)}, runtime {_gb(parts.runtime)}."
        for kind, parts, memory, _ in found
        if parts is not None and memory is not None
    )
    best = max(largest or 0 for *_, largest in found)
    hint = f"A lora_rank of at most {best} may fit." if best else "Choose a smaller model, or ask for a larger device."
    message = f"An adapter of rank {rank} for {base_model.name!r} cannot be trained here. {on_each} {hint}"
    return ApiError(400, message, "does_not_fit", _RANK if best else "model")


def _total(parts: FineTuningMemory) -> int:
    return parts.weights + parts.adapter + parts.runtime


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
