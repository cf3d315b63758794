"""Chooses the engine options of a pipeline's distillation, and plans the memory of the engines of its stages."""

from collections.abc import Sequence
from dataclasses import replace

from control.models.catalog.models import BaseModel
from control.models.engines.planning import Purpose, Workload, concurrency_check, engine_plan, memory_needed
from control.models.engines.schemas import EngineOptions
from control.workflows.evaluations.arms import Arm
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import PipelineOptions, PipelinePlan


def distillation_engine(options: EngineOptions) -> EngineOptions:
    """Returns `options` for the distillation's engine, without the options for concurrency and drafting.

    The options that are left out do not change the answers. The distillation uses no speculator, and answers as many
    rows at once as fit into the memory.
    """
    return options.model_copy(update={"max_concurrency": None, "drafting": None, "draft_budget": None})


def training_memory_needed(base_model: BaseModel) -> dict[str, int]:
    """Returns a lower bound for the memory that the training job needs: the model's memory without the speculator."""
    return memory_needed(EngineOptions(), Workload(purpose=Purpose.TRAINING, base_model=base_model))


def pipeline_plan(base_model: BaseModel, body: PipelineOptions, arms: Sequence[Arm] = ()) -> PipelinePlan:
    """Plans the memory of the stages' engines.

    Args: arms: the further arms of the evaluation.

    Raises: ApiError: 400, the engine's options contradict each other, or do not fit the model, the speculator or the
        measured concurrencies, or the engine of a stage fits on no kind of device.
    """
    options, measured = body.engine or EngineOptions(), body.evaluation.concurrencies
    concurrency_check(options, measured, "evaluation.concurrencies")

    def workload(purpose: Purpose) -> Workload:
        concurrencies = measured if purpose is Purpose.EVALUATION else ()
        trains = purpose is not Purpose.BATCH
        return Workload(
            purpose=purpose,
            base_model=base_model,
            concurrencies=concurrencies,
            trains_speculator=trains,
            hardware=body.hardware or "",
        )

    compared = replace(
        workload(Purpose.EVALUATION),
        further_speculators=[arm.speculator for arm in arms if arm.speculator is not None],
        num_further_engines=sum(arm.needs_engine for arm in arms),
    )
    evaluation = engine_plan(options, compared)
    distils = body.distillation_id is None and body.answers == Pipeline.Answers.MODEL
    return PipelinePlan(
        distillation=engine_plan(distillation_engine(options), workload(Purpose.BATCH)) if distils else None,
        evaluation=evaluation,
        deployment=engine_plan(options, workload(Purpose.ENDPOINT)) if body.deploy else None,
    )
