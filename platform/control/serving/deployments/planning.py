"""Plans the memory of an endpoint before its deployment is created (workers/planning.py)."""

from collections.abc import Sequence
from dataclasses import asdict

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.schemas import DeploymentPlan, EngineOptions, MemoryParts
from workers.planning import DoesNotFit, ModelSizes, Wanted, plan


def deployment_plan(
    base_model: BaseModel,
    options: EngineOptions,
    *,
    speculator: Speculator | None = None,
    adapters: Sequence[Adapter] = (),
) -> DeploymentPlan:
    """Raises: ApiError: 400, one request of the wanted context does not fit into the memory of an endpoint."""
    config = get_config()
    planned = None
    device = "cuda" if config.device.startswith("cuda") else "cpu"
    is_known = config.endpoint_memory_bytes is not None or device == "cpu"
    if base_model.sizes is not None and is_known:
        wanted = Wanted(
            device=device,
            memory_bytes=config.endpoint_memory_bytes,
            weights=options.weights,
            context=options.max_context,
            concurrency=options.max_concurrency,
            speculator_bytes=0 if speculator is None else _weight_bytes(speculator.storage_prefix),
            adapter_bytes=sum(adapter.size_bytes for adapter in adapters),
        )
        try:
            planned = plan(ModelSizes(**base_model.sizes), wanted)
        except DoesNotFit as error:
            raise ApiError(400, f"The model does not fit: {error}.", "does_not_fit", "engine") from error
    return DeploymentPlan(
        memory_bytes=config.endpoint_memory_bytes,
        parts=None if planned is None else MemoryParts(**asdict(planned.parts)),
        max_context=options.max_context if planned is None else planned.context,
        max_concurrency=options.max_concurrency,
        kv_tokens=None if planned is None else planned.kv_slots,
        price_per_hour=config.price_per_gpu_hour,
    )


def _weight_bytes(storage_prefix: str) -> int:
    sizes = get_storage().sizes(storage_prefix)
    return sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
