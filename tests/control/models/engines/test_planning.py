"""An engine's memory is planned for each kind of device, and contradictory options are refused."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pytest_django import Settings

from control.billing.usage.device_time import device_price_set
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel, Speculator
from control.models.engines.planning import Purpose, Workload, engine_plan, memory_needed
from control.models.engines.schemas import EngineOptions, EnginePlan
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_speculator
from tests.workers.test_planning import DEEPSEEK_V3, QWEN_32B, SMOLLM2
from workers.contracts import EVALUATION_ENGINES
from workers.model_sizes import ModelSizes
from workers.planning import Wanted, mtp_bytes, plan, plan_rows, weight_bytes

pytestmark = pytest.mark.django_db
SIZES = ModelSizes.of(SMOLLM2)
GB = 10**9


@pytest.fixture
def model() -> BaseModel:
    made = make_base_model()
    made.sizes, made.model_type = asdict(SIZES), "llama"
    made.save()
    return made


@pytest.fixture
def speculator(model: BaseModel, organization: Organization) -> Speculator:
    return make_speculator(model, organization)


def use(settings: Settings, **values: Any) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update=values)


def refusal(options: EngineOptions, workload: Workload) -> tuple[str | None, str | None, str]:
    with pytest.raises(ApiError) as caught:
        engine_plan(options, workload)
    return caught.value.code, caught.value.param, caught.value.message


def test_a_model_is_planned_for_each_kind_of_device(model: BaseModel, settings: Settings) -> None:
    """R1-Distill-Qwen-32B needs 85 GB for 65,536 tokens, which an 80 GB GPU does not have."""
    model.sizes = asdict(ModelSizes.of(QWEN_32B))
    use(settings, device="cpu", device_memory_bytes={"cpu": 200 * GB, "cuda": 80 * GB})
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model)

    whole = engine_plan(EngineOptions(max_context=65_536, memory_share=0.95), workload)
    short = engine_plan(EngineOptions(max_context=16_384, memory_share=0.95), workload)

    assert {device.device_kind: device.fits for device in whole.devices} == {"cpu": True, "cuda": False}
    assert {device.device_kind: device.fits for device in short.devices} == {"cpu": True, "cuda": True}
    refused = next(device for device in whole.devices if device.device_kind == "cuda")
    assert refused.reason is not None
    assert refused.reason.code == "does_not_fit"


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weight_formats_that_the_engine_lacks_for_a_model_are_refused(
    model: BaseModel, settings: Settings, weights: Literal["int8", "int4"]
) -> None:
    model.sizes, model.model_type = asdict(ModelSizes.of(DEEPSEEK_V3)), "deepseek_v3"
    use(settings, device="cpu")
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model)

    code, param, message = refusal(EngineOptions(weights=weights), workload)

    assert (code, param) == ("weights_not_supported", "engine.weights")
    assert "Llama's family, Mixtral and Qwen3-MoE only" in message


def test_memory_for_the_mtp_module_is_planned_if_the_module_drafts(model: BaseModel, settings: Settings) -> None:
    model.sizes, model.model_type = asdict(ModelSizes.of(DEEPSEEK_V3)), "deepseek_v3"
    use(settings, device="cpu")
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model)

    (planned,) = engine_plan(EngineOptions(drafting="native_mtp"), workload).devices

    assert planned.parts is not None
    assert planned.parts.speculator == mtp_bytes(ModelSizes.of(DEEPSEEK_V3), "cpu")


@pytest.mark.parametrize(
    ("options", "with_speculator", "code", "param"),
    [
        ({"drafting": "speculator"}, False, "speculator_required", "engine.drafting"),
        ({"drafting": "none"}, True, "drafting_conflict", "engine.drafting"),
        ({"drafting": "suffix"}, True, "drafting_conflict", "engine.drafting"),
        ({"drafting": "none", "draft_budget": 4}, False, "drafting_conflict", "engine.draft_budget"),
        ({"drafting": "native_mtp"}, False, "drafting_not_supported", "engine.drafting"),
        ({"weights": "fp8"}, False, "weights_not_supported", "engine.weights"),
        ({"kv_dtype": "float32"}, False, "kv_dtype_not_supported", "engine.kv_dtype"),
    ],
)
def test_contradictory_drafting_options_are_refused_with_a_specific_code(
    model: BaseModel,
    speculator: Speculator,
    settings: Settings,
    options: dict[str, Any],
    with_speculator: bool,
    code: str,
    param: str,
) -> None:
    use(settings, device="cpu")
    given = speculator if with_speculator else None
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model, speculator=given)

    assert refusal(EngineOptions(**options), workload)[:2] == (code, param)


@pytest.mark.parametrize(
    ("options", "with_speculator"),
    [
        ({"drafting": "speculator", "draft_budget": 4}, True),
        ({}, True),
        ({"drafting": "none", "draft_budget": 0}, False),
        ({"drafting": "ngram", "draft_budget": 4}, False),
        ({"weights": "int4", "kv_dtype": "bf16"}, False),
        ({"weights": "bf16", "kv_dtype": "bf16"}, False),
    ],
)
def test_consistent_drafting_options_are_accepted(
    model: BaseModel, speculator: Speculator, settings: Settings, options: dict[str, Any], with_speculator: bool
) -> None:
    use(settings, device="cpu")
    given = speculator if with_speculator else None

    answer = engine_plan(
        EngineOptions(**options), Workload(purpose=Purpose.ENDPOINT, base_model=model, speculator=given)
    )

    assert answer.devices[0].fits is True


def test_native_mtp_is_accepted_for_deepseek_v3_even_if_the_models_sizes_are_unknown(model: BaseModel) -> None:
    model.model_type, model.sizes = "deepseek_v3", None

    answer = engine_plan(EngineOptions(drafting="native_mtp"), Workload(purpose=Purpose.ENDPOINT, base_model=model))

    assert answer.devices[0].fits is None


def plan_on_two_kinds(model: BaseModel, settings: Settings, **options: Any) -> EnginePlan:
    """Returns the plan for two kinds of devices: a CPU with 8 GB, as on this machine, and a GPU with 2 GB."""
    use(settings, device="cpu", device_memory_bytes={"cuda": 2 * GB, "cpu": 8 * GB})
    device_price_set(device_kind="cuda", hour_nanousd=3 * GB)
    return engine_plan(EngineOptions(**options), Workload(purpose=Purpose.ENDPOINT, base_model=model))


def test_each_kind_of_device_has_its_plan_and_its_price(model: BaseModel, settings: Settings) -> None:
    cpu, cuda = plan_on_two_kinds(model, settings, memory_share=0.5).devices

    half = plan(SIZES, Wanted(device="cpu", memory_bytes=4 * GB))
    assert (cpu.device_kind, cpu.fits, cpu.kv_tokens, cpu.price_per_hour) == ("cpu", True, half.kv_slots, None)
    assert (cuda.device_kind, cuda.fits, cuda.price_per_hour) == ("cuda", False, 3.0)
    assert cuda.reason is not None
    assert cuda.reason.code == "does_not_fit"
    assert cuda.parts is not None
    assert cuda.parts.weights > 0
    assert cuda.memory_bytes == GB


def test_without_memory_share_the_plan_uses_95_percent_of_a_gpu(model: BaseModel, settings: Settings) -> None:
    _, cuda = plan_on_two_kinds(model, settings, max_context=512, max_concurrency=1, draft_budget=0).devices

    assert cuda.memory_bytes == int(0.95 * 2 * GB)


def test_a_weight_format_that_only_one_kind_of_device_supports_is_accepted(
    model: BaseModel, settings: Settings
) -> None:
    cpu, cuda = plan_on_two_kinds(
        model, settings, weights="fp8", max_context=512, max_concurrency=1, draft_budget=0
    ).devices

    assert cpu.reason is not None
    assert (cpu.fits, cpu.reason.code) == (False, "weights_not_supported")
    assert cuda.fits is True


def test_if_the_devices_memory_is_unknown_a_plan_with_memory_share_does_not_say_whether_the_model_fits(
    model: BaseModel, settings: Settings
) -> None:
    use(settings, device="cpu")

    (cpu,) = engine_plan(EngineOptions(memory_share=0.5), Workload(purpose=Purpose.ENDPOINT, base_model=model)).devices

    assert cpu.reason is not None
    assert (cpu.fits, cpu.reason.code) == (None, "device_memory_unknown")


def test_a_plan_that_lacks_the_model_or_its_sizes_gives_the_reason(model: BaseModel) -> None:
    model.sizes = None
    unknown = engine_plan(EngineOptions(), Workload(purpose=Purpose.BATCH, base_model=model)).devices
    unnamed = engine_plan(EngineOptions(), Workload(purpose=Purpose.BATCH, base_model=None)).devices

    assert [device.reason and device.reason.code for device in unknown] == ["sizes_unknown"]
    assert [device.reason and device.reason.code for device in unnamed] == ["model_unknown"]


def test_a_batch_runs_as_many_rows_as_fit_and_an_evaluation_has_a_kv_cache_for_each_engine(
    model: BaseModel, settings: Settings
) -> None:
    use(settings, device="cpu", device_memory_bytes={"cpu": 4 * GB})
    options = EngineOptions(memory_share=1)

    batch = engine_plan(options, Workload(purpose=Purpose.BATCH, base_model=model)).devices[0]
    evaluation = engine_plan(
        options, Workload(purpose=Purpose.EVALUATION, base_model=model, concurrencies=(1, 4))
    ).devices[0]

    rows = plan_rows(SIZES, Wanted(device="cpu", memory_bytes=4 * GB, concurrency=32))
    shared = plan(SIZES, Wanted(device="cpu", memory_bytes=4 * GB, concurrency=4, num_engines=EVALUATION_ENGINES))
    assert (batch.max_concurrency, batch.kv_tokens) == (rows.concurrency, rows.kv_slots)
    assert (evaluation.max_concurrency, evaluation.kv_tokens) == (4, shared.kv_slots)


def test_the_plan_of_an_evaluation_holds_the_weights_and_engines_of_all_arms(
    model: BaseModel, speculator: Speculator, settings: Settings, tmp_path: Path
) -> None:
    use(settings, device="cpu", device_memory_bytes={"cpu": 4 * GB})
    options, size = EngineOptions(memory_share=1), 200 * 10**6
    small, large = (
        make_speculator(model, speculator.organization, name=name, storage_prefix=f"speculators/of-arms/{name}")
        for name in ("small", "large")
    )
    (tmp_path / "weights").write_bytes(bytes(size))
    get_storage().put_file("speculators/of-arms/large/model.safetensors", tmp_path / "weights")

    def evaluation(*further: Speculator, num_engines: int = 0) -> Workload:
        return Workload(
            purpose=Purpose.EVALUATION,
            base_model=model,
            speculator=small,
            concurrencies=(1, 4),
            further_speculators=further,
            num_further_engines=num_engines,
        )

    compared = evaluation(large, num_engines=2)
    planned = engine_plan(options, compared).devices[0]

    wanted = Wanted(device="cpu", memory_bytes=4 * GB, concurrency=4, num_engines=EVALUATION_ENGINES + 2)
    assert planned.kv_tokens == plan(SIZES, replace(wanted, speculator_bytes=size)).kv_slots
    assert planned.parts is not None
    assert planned.parts.speculator == size
    alone, all_of_them = memory_needed(options, evaluation()), memory_needed(options, compared)
    assert all_of_them["cpu"] - alone["cpu"] > size


def test_measured_concurrencies_above_max_concurrency_are_refused(model: BaseModel, speculator: Speculator) -> None:
    workload = Workload(purpose=Purpose.EVALUATION, base_model=model, speculator=speculator, concurrencies=(1, 4, 16))

    code, param, message = refusal(EngineOptions(max_concurrency=8), workload)

    assert (code, param) == ("concurrency_too_high", "concurrencies")
    assert "at most 8" in message
    assert "got 16" in message
    assert engine_plan(EngineOptions(max_concurrency=16), workload).devices[0].fits is True


def test_the_plan_warns_of_a_capped_context_and_of_options_that_differ_from_the_speculators_report(
    model: BaseModel, speculator: Speculator
) -> None:
    speculator.report = {"weights": "auto", "engine": {"weights": "auto", "draft_budget": None}}
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model, speculator=speculator)

    same = engine_plan(EngineOptions(), workload)
    other = engine_plan(EngineOptions(weights="int8", max_context=10**6, draft_budget=3), workload)

    assert same.warnings == []
    assert [warning.split()[0] for warning in other.warnings] == ["max_context", "The", "The"]
    assert "weights 'auto', not 'int8'" in other.warnings[1]
    assert "draft_budget None, not 3" in other.warnings[2]


def test_a_speculator_that_was_never_measured_causes_no_warning(model: BaseModel, speculator: Speculator) -> None:
    speculator.report = {}
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=model, speculator=speculator)

    assert engine_plan(EngineOptions(weights="int8"), workload).warnings == []


@pytest.mark.parametrize("purpose", [Purpose.BATCH, Purpose.EVALUATION])
def test_a_workload_fits_on_a_gpu_with_the_memory_that_it_needs_and_not_on_a_smaller_one(
    model: BaseModel, settings: Settings, purpose: Purpose
) -> None:
    workload = Workload(purpose=purpose, base_model=model, concurrencies=[4])
    needed = memory_needed(EngineOptions(), workload)["cuda"]

    def fits(memory_bytes: int) -> bool | None:
        use(settings, device="cuda", device_memory_bytes={"cuda": memory_bytes})
        try:
            return engine_plan(EngineOptions(), workload).devices[0].fits
        except ApiError:
            return False

    assert (fits(needed), fits(needed - 2)) == (True, False)


def test_a_workload_on_a_cpu_needs_the_memory_that_the_engine_takes(model: BaseModel, settings: Settings) -> None:
    use(settings, device="cpu")
    workload = Workload(purpose=Purpose.BATCH, base_model=model)

    (planned,) = engine_plan(EngineOptions(), workload).devices

    assert planned.parts is not None
    assert memory_needed(EngineOptions(), workload)["cpu"] == sum(planned.parts.model_dump().values())


def test_an_engine_that_may_use_half_of_the_memory_needs_a_device_with_twice_the_memory(model: BaseModel) -> None:
    workload = Workload(purpose=Purpose.BATCH, base_model=model)
    whole, half = (
        memory_needed(EngineOptions(max_context=512, memory_share=share), workload)["cpu"] for share in (1.0, 0.5)
    )

    assert half == 2 * whole


def test_training_needs_the_memory_of_the_model(model: BaseModel) -> None:
    needed = memory_needed(EngineOptions(), Workload(purpose=Purpose.TRAINING, base_model=model))

    assert needed["cuda"] > weight_bytes(SIZES, "auto", device="cuda")


def test_a_kind_of_device_that_cannot_use_the_weights_is_left_out(model: BaseModel) -> None:
    assert memory_needed(EngineOptions(weights="fp8"), Workload(purpose=Purpose.BATCH, base_model=model)).keys() == {
        "cuda"
    }


def test_the_memory_that_a_model_of_unknown_sizes_needs_is_unknown(model: BaseModel) -> None:
    model.sizes = None

    for base_model in (model, None):
        workload = Workload(purpose=Purpose.BATCH, base_model=base_model)
        assert memory_needed(EngineOptions(), workload) == {"cpu": 0, "cuda": 0}
