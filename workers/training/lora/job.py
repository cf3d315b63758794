"""Runs a fine-tuning job. It reads labelled chats and writes a LoRA adapter:

training file ─▶ token ids and labels ─▶ loop ─▶ best weights ─▶ adapter
                                          └▶ every epoch: a checkpoint, which also has the adapter's files

Training continues from a checkpoint; the adapter's files in it can be served.
"""

from pathlib import Path
from typing import Any

from engine.config import ModelConfig, read_config, resolve_device
from engine.tokenizer import Tokenizer
from workers.contracts import Checkpoint, Event, FineTuningSpec, Finished
from workers.emitter import Emit
from workers.failures import UserConfigError
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.lora import LoraHyperparameters, read_lora_hyperparameters
from workers.inference.loading import loading_failures
from workers.kinds import FINE_TUNED_MODEL_TYPES, LORA
from workers.training.checkpoint import whole_folder
from workers.training.loop import Outcome, RowOrder, train_in_order
from workers.training.lora.labels import LabelFigures, LoraMethod
from workers.training.lora.rows import LabelledRows, read_labelled_rows
from workers.training.tracking import TrackedRun, configured_trackers, tracked


def run_fine_tuning(spec: FineTuningSpec, emit: Emit) -> Finished:
    parameters = _read_parameters(spec)
    with loading_failures():
        max_tokens = min(parameters.max_row_tokens, _checked_config(spec).max_position_embeddings)
        tokenizer = Tokenizer.load(Path(spec.model_dir))
    train = _rows(spec.rows_path, "training_file", tokenizer, parameters, max_tokens)
    validation = None
    if spec.validation_path is not None:
        validation = _rows(spec.validation_path, "validation_file", tokenizer, parameters, max_tokens)
    with loading_failures():
        method = LoraMethod(
            Path(spec.model_dir),
            parameters,
            train=train.rows,
            validation=() if validation is None else validation.rows,
            seed=spec.seed,
            device=resolve_device(spec.device),
        )
    output_dir = Path(spec.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    order = RowOrder(method.num_rows, parameters.batch_rows, spec.seed, drop_last=False)
    outcome = _train(spec, method, parameters, order, emit)
    folder = output_dir / "adapter"
    with whole_folder(folder) as partial:
        method.save(partial, base_model=spec.target_revision)
    result = _result(order, outcome, train, validation)
    return Finished(result=result, artifacts={"adapter": str(folder)})


def _read_parameters(spec: FineTuningSpec) -> LoraHyperparameters:
    try:
        return read_lora_hyperparameters(spec.hyperparameters)
    except HyperparameterError as error:
        raise UserConfigError("invalid_hyperparameters", str(error)) from error


def _checked_config(spec: FineTuningSpec) -> ModelConfig:
    """Raises: UserConfigError: no adapter of this model can be trained."""
    values = read_config(Path(spec.model_dir))
    if values.get("model_type") not in FINE_TUNED_MODEL_TYPES:
        message = (
            f"fine-tuning is for models of type {', '.join(FINE_TUNED_MODEL_TYPES)}, got {values.get('model_type')!r}"
        )
        raise UserConfigError("fine_tuning_not_supported", message)
    if values.get("quantization_config"):
        message = "models whose weights are stored quantized cannot be fine-tuned"
        raise UserConfigError("fine_tuning_not_supported", message)
    return ModelConfig.from_folder(Path(spec.model_dir))


def _rows(path: str, name: str, tokenizer: Tokenizer, parameters: LoraHyperparameters, max_tokens: int) -> LabelledRows:
    return read_labelled_rows(Path(path), tokenizer, name=name, max_tokens=max_tokens, long_rows=parameters.long_rows)


def _train(
    spec: FineTuningSpec, method: LoraMethod, parameters: LoraHyperparameters, order: RowOrder, emit: Emit
) -> Outcome[LabelFigures]:
    def with_adapter(event: Event) -> None:
        if isinstance(event, Checkpoint):
            method.save(Path(event.path), base_model=spec.target_revision)
        emit(event)

    run = TrackedRun(
        name=spec.job_id, folder=Path(spec.output_dir), parameters={"seed": spec.seed, **spec.hyperparameters}
    )
    with tracked(with_adapter, run, configured_trackers()) as tracking:
        return train_in_order(
            method,
            parameters.loop(steps_per_epoch=order.steps_per_epoch),
            order,
            figures=LabelFigures,
            seed=spec.seed,
            checkpoint_dir=Path(spec.checkpoint_dir),
            emit=tracking,
        )


def _result(
    order: RowOrder,
    outcome: Outcome[LabelFigures],
    train: LabelledRows,
    validation: LabelledRows | None,
) -> dict[str, Any]:
    progression = outcome.progression
    losses = [entry["loss"] for entry in progression.history if "loss" in entry]
    return {
        "method": LORA,
        "train_loss": losses[-1] if losses else None,
        "validation_loss": outcome.validation.loss,
        "validation_accuracy": outcome.validation.accuracy,
        "steps": progression.step,
        "best_step": progression.best_step,
        "stopped_by": progression.stopped,
        "elapsed_seconds": round(progression.elapsed_seconds, 1),
        "rows_train": len(train.rows),
        "rows_validation": 0 if validation is None else len(validation.rows),
        "rows_cut": train.num_cut + (0 if validation is None else validation.num_cut),
        "label_tokens": train.num_labels,
        "trained_tokens": round(train.num_tokens * progression.step / order.steps_per_epoch),
        "data_sha256": train.sha256,
        "history": list(progression.history),
    }
