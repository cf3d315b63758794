"""Plans the memory of an engine on each kind of device of the installation (workers/planning.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import ceil

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel, Speculator
from control.models.engines.devices import DeviceKind, device_kinds
from control.models.engines.drafting import drafting_check
from control.models.engines.schemas import (
    DevicePlan,
    EngineOptions,
    EnginePlan,
    MemoryParts,
    Reason,
    SequenceCount,
)
from workers.contracts import EVALUATION_ENGINES, MAX_ROWS
from workers.model_sizes import ModelSizes
from workers.planning import DEFAULT_CONCURRENCY, DoesNotFit, Plan, Wanted, plan, plan_rows

_EXCLUSIVE_SHARE = 0.95  # share of a GPU's memory that engine/planned.py fills
_DRAFT_NODES = 32  # the same as MAX_DRAFT_NODES in engine/loop.py
_INT4_GROUP = 32
_LENGTHS = (512, 2048, 8192, 32768)
_PARAMS = {"weights_not_supported": "engine.weights", "kv_dtype_not_supported": "engine.kv_dtype"}


class Purpose(StrEnum):
    ENDPOINT = "endpoint"
    BATCH = "batch"
    EVALUATION = "evaluation"  # the engines of all arms share the weights
    TRAINING = "training"  # only the target's forward passes are planned, so the memory is a lower bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an engine will serve, and for what purpose.

    Attributes:
        base_model: None if it is not known yet.
        concurrencies: the concurrencies that an evaluation measures.
        further_speculators: the other speculators of an evaluation, which are loaded at the same time.
        num_further_engines: the engines of an evaluation's further arms.
        trains_speculator: whether the served speculator is yet to be trained, so that its size is unknown.
        hardware: requested kind or model of the device; empty: any device. If no registered device has this name, the
            plan covers all kinds of devices.
        staged_speculator_bytes: size of a speculator's weights that the caller has measured. `speculator` is then None,
            so that the size is not read from storage.
    """

    purpose: Purpose
    base_model: BaseModel | None
    speculator: Speculator | None = None
    adapters: Sequence[Adapter] = ()
    concurrencies: Sequence[int] = ()
    trains_speculator: bool = False
    further_speculators: Sequence[Speculator] = ()
    num_further_engines: int = 0
    staged_speculator_bytes: int = 0
    hardware: str = ""


def engine_plan(options: EngineOptions, workload: Workload) -> EnginePlan:
    """Returns the plans for all kinds of devices. Creates nothing.

    Raises: ApiError: 400, the options contradict each other, or the engine fits on no kind of device; the message has
        the bytes of each part.
    """
    has_speculator = workload.speculator is not None or workload.trains_speculator
    drafting_check(options, base_model=workload.base_model, has_speculator=has_speculator)
    concurrency_check(options, workload.concurrencies)
    planner = _Planner(options, workload)
    devices = [planner.on(device) for device in device_kinds(workload.hardware)]
    if all(device.fits is False for device in devices):
        raise _refusal(devices)
    return EnginePlan(devices=devices, warnings=list(_warnings(options, workload)))


def memory_needed(options: EngineOptions, workload: Workload) -> dict[str, int]:
    """Returns, for each kind of device that can run the workload, the bytes of memory that the device must have.

    0: the memory is unknown, because the plan lacks the model or its sizes.
    """
    planner = _Planner(options, workload)
    needed = {kind: planner.needed(kind) for kind in MAX_ROWS}
    return {kind: memory_bytes for kind, memory_bytes in needed.items() if memory_bytes is not None}


def concurrency_check(options: EngineOptions, concurrencies: Sequence[int], param: str = "concurrencies") -> None:
    """Raises: ApiError: 400, a measured concurrency exceeds the max_concurrency of the served engine."""
    limit = options.max_concurrency
    if limit is not None and concurrencies and max(concurrencies) > limit:
        message = f"{param} must be at most {limit}, the max_concurrency of engine, got {max(concurrencies)}"
        raise ApiError(400, message, "concurrency_too_high", param)


def memory_limit(options: EngineOptions, total_bytes: int | None) -> int | None:
    """Returns how many of `total_bytes` the engine may use; None if the total or the share is not given."""
    if options.memory_share is None or total_bytes is None:
        return None
    return int(options.memory_share * total_bytes)


def sizes_of(base_model: BaseModel) -> ModelSizes | None:
    """Returns the sizes from which memory is planned; None: unknown."""
    return None if base_model.sizes is None else ModelSizes.from_json(base_model.sizes)


class _Planner:
    def __init__(self, options: EngineOptions, workload: Workload) -> None:
        self.options, self.workload = options, workload
        model, speculator = workload.base_model, workload.speculator
        self.sizes = None if model is None else sizes_of(model)
        speculators = [*([] if speculator is None else [speculator]), *workload.further_speculators]
        measured = sum(_weight_bytes(each.artifact_prefix) for each in speculators)
        self.speculator_bytes = measured + workload.staged_speculator_bytes
        self.adapter_bytes = sum(adapter.size_bytes for adapter in workload.adapters)

    def on(self, device: DeviceKind) -> DevicePlan:
        reason = _unsupported(self.options, self.sizes, device.name)
        if reason is not None:
            return self._answer(device, fits=False, reason=reason)
        if self.sizes is None:
            return self._answer(device, fits=None, reason=_unknown_sizes(self.workload.base_model))
        is_known, memory_bytes = self._memory(device)
        if not is_known:
            message = "The operators have not stated the memory of this kind of device."
            return self._answer(device, fits=None, reason=Reason(code="device_memory_unknown", message=message))
        try:
            planned = self._planned(self.sizes, device, memory_bytes)
        except DoesNotFit as error:
            reason = Reason(code="does_not_fit", message=f"The model does not fit: {error}.")
            parts = MemoryParts(**asdict(error.parts))
            return self._answer(device, fits=False, reason=reason, memory_bytes=memory_bytes, parts=parts)
        lengths = sorted({length for length in (*_LENGTHS, planned.context) if length <= planned.context})
        return self._answer(
            device,
            fits=True,
            memory_bytes=memory_bytes,
            parts=MemoryParts(**asdict(planned.parts)),
            max_context=planned.context,
            max_concurrency=planned.concurrency,
            kv_tokens=planned.kv_slots,
            sequences=[SequenceCount(tokens=n, num_sequences=planned.num_sequences(n)) for n in lengths],
        )

    def needed(self, kind: str) -> int | None:
        """Returns the bytes of memory that a device of this kind must have.

        None: devices of this kind cannot run the workload; 0: the memory is unknown. An engine that fills a share of
        the memory needs room for at least one sequence. An engine on a CPU without a share uses memory of a fixed size.
        """
        if _unsupported(self.options, self.sizes, kind) is not None:
            return None
        if self.sizes is None:
            return 0
        share = self.options.memory_share or (_EXCLUSIVE_SHARE if kind == "cuda" else None)
        is_least = share is not None or self.workload.purpose is Purpose.TRAINING
        device = DeviceKind(name=kind, memory_bytes=None, price_per_hour=None)
        try:
            total = self._planned(self.sizes, device, 0 if is_least else None).parts.total
        except DoesNotFit as error:
            total = error.parts.total
        return ceil(total / (share or 1))

    def _memory(self, device: DeviceKind) -> tuple[bool, int | None]:
        """Returns whether the memory is known, and the bytes that the engine may use; None: no bound."""
        is_endpoint = self.workload.purpose is Purpose.ENDPOINT
        bound = get_config().endpoint_memory_bytes if is_endpoint else None
        total = device.memory_bytes if bound is None else bound
        if self.options.memory_share is not None:
            return total is not None, memory_limit(self.options, total)
        if bound is not None or device.name == "cpu":
            return True, bound
        return total is not None, None if total is None else int(_EXCLUSIVE_SHARE * total)

    def _concurrency(self) -> int | None:
        given = self.options.max_concurrency
        if given is not None or self.workload.purpose is Purpose.BATCH:
            return given
        if self.workload.purpose is Purpose.TRAINING:
            return 1
        return max(self.workload.concurrencies, default=DEFAULT_CONCURRENCY)

    def _planned(self, sizes: ModelSizes, device: DeviceKind, memory_bytes: int | None) -> Plan:
        concurrency, budget = self._concurrency(), self.options.draft_budget
        is_evaluation = self.workload.purpose is Purpose.EVALUATION
        wanted = Wanted(
            device=device.name,
            memory_bytes=memory_bytes,
            weights=self.options.weights,
            context=self.options.max_context,
            concurrency=MAX_ROWS[device.name] if concurrency is None else concurrency,
            draft_nodes=_DRAFT_NODES if budget is None else budget,
            speculator_bytes=self.speculator_bytes,
            adapter_bytes=self.adapter_bytes,
            has_mtp_module=self.options.drafting == "native_mtp",
            num_engines=EVALUATION_ENGINES + self.workload.num_further_engines if is_evaluation else 1,
        )
        return (plan_rows if concurrency is None else plan)(sizes, wanted)

    def _answer(
        self,
        device: DeviceKind,
        *,
        fits: bool | None,
        reason: Reason | None = None,
        memory_bytes: int | None = None,
        parts: MemoryParts | None = None,
        max_context: int | None = None,
        max_concurrency: int | None = None,
        kv_tokens: int | None = None,
        sequences: Sequence[SequenceCount] = (),
    ) -> DevicePlan:
        return DevicePlan(
            device_kind=device.name,
            hardware=device.hardware,
            fits=fits,
            reason=reason,
            memory_bytes=memory_bytes,
            parts=parts,
            max_context=self.options.max_context if max_context is None else max_context,
            max_concurrency=self._concurrency() if max_concurrency is None else max_concurrency,
            kv_tokens=kv_tokens,
            sequences=list(sequences),
            price_per_hour=device.price_per_hour,
        )


def _unsupported(options: EngineOptions, sizes: ModelSizes | None, device: str) -> Reason | None:
    """Returns why the device or the model cannot use the formats that `options` names; None: they can.

    The engine refuses the formats with the same error codes.
    """
    weights, needed = options.weights, {"int4": "cpu", "fp8": "cuda"}.get(options.weights)
    if needed is not None and device != needed:
        message = f"{weights} weights need a device of kind {needed}, got {device}."
        return Reason(code="weights_not_supported", message=message)
    if sizes is None:
        return None
    if weights not in ("auto", "bf16") and not sizes.has_weight_formats:
        message = f"{weights} weights are for Llama's family, Mixtral and Qwen3-MoE only."
        return Reason(code="weights_not_supported", message=message)
    if weights == "int4" and any(size % _INT4_GROUP for size in sizes.group_sizes):
        message = f"int4 weights need layer sizes that are multiples of {_INT4_GROUP}, got {sizes.group_sizes}."
        return Reason(code="weights_not_supported", message=message)
    dtype = "float32" if sizes.dtype_bytes == 4 and weights != "bf16" else "bf16"
    if options.kv_dtype not in ("auto", dtype):
        message = f"kv_dtype must be the model's dtype, {dtype}, got {options.kv_dtype}."
        return Reason(code="kv_dtype_not_supported", message=message)
    return None


def _unknown_sizes(base_model: BaseModel | None) -> Reason:
    if base_model is None:
        return Reason(code="model_unknown", message="The request does not name the model.")
    message = f"The sizes of {base_model.name!r} are unknown: its type {base_model.model_type!r} cannot be planned, or "
    return Reason(code="sizes_unknown", message=message + "it was registered before sizes were stored.")


def _refusal(devices: Sequence[DevicePlan]) -> ApiError:
    """Builds the error for an engine that fits on no device.

    If the model is too large for one of the devices, the code is `does_not_fit`: other options may make the model fit.
    """
    reasons = [(device.device_kind, device.reason) for device in devices if device.reason is not None]
    codes = [reason.code for _, reason in reasons]
    code = "does_not_fit" if "does_not_fit" in codes else codes[0]
    several = len(reasons) > 1
    message = " ".join(f"On {kind}: {reason.message}" if several else reason.message for kind, reason in reasons)
    return ApiError(400, message, code, _PARAMS.get(code, "engine"))


def context_limit(options: EngineOptions, model: BaseModel) -> int | None:
    """Returns the maximum tokens of a prompt and its answer together; None: unknown.

    The device's memory may allow fewer tokens.
    """
    limits = [limit for limit in (options.max_context, _longest(model)) if limit is not None]
    return min(limits, default=None)


def _longest(model: BaseModel) -> int | None:
    return None if model.sizes is None else model.sizes["max_positions"]


def _warnings(options: EngineOptions, workload: Workload) -> Iterable[str]:
    longest = None if workload.base_model is None else _longest(workload.base_model)
    if options.max_context is not None and longest is not None and options.max_context > longest:
        yield f"max_context is {longest:,}, the most that the model allows, instead of {options.max_context:,}."
    if workload.trains_speculator:
        yield "The speculator's size is unknown until it is trained; it is planned with 0 bytes."
    report = {} if workload.speculator is None else workload.speculator.report
    measured = {"weights": report.get("weights"), **(report.get("engine") or {})}
    for name in ("weights", "draft_budget"):
        value = getattr(options, name)
        if measured.get("weights") is not None and name in measured and measured[name] != value:
            yield f"The speculator's report was measured with {name} {measured[name]!r}, not {value!r}."


def _weight_bytes(storage_prefix: str) -> int:
    sizes = get_storage().sizes(storage_prefix)
    return sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
