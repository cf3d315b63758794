"""Evaluates a speculator: answers held-out prompts with and without it, compares the tokens and measures the time.

The first baseline is the same engine with the same weights and concurrency but no drafter, which is the fastest plain
decoding that the engine offers. The second baseline is the engine with suffix decoding alone, which is what a customer
has without any training. Further drafters, with which the speculator is compared, take turns with these three
arms. The answers of every run are compared token by token with those of the first plain run.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.fingerprint import fingerprint_of
from engine.grammars.compiler import compiler_for
from engine.load import apply_adapter, load_drafter, load_model
from engine.loop import Engine
from engine.planned import fit
from engine.row_invariance import check_row_invariance
from engine.tokenizer import Tokenizer
from workers.build import build_identity
from workers.contracts import EVALUATION_ENGINES, Checkpoint, EvaluationSpec, Finished, Metrics, Progress
from workers.emitter import Emit
from workers.failures import InvalidInputError, UserConfigError
from workers.inference.arms_report import ARM_DEFINITIONS, arms_report
from workers.inference.comparison import SUFFIX, Arms, Measurement, measure, warm_up
from workers.inference.distribution import compare_distributions
from workers.inference.driver import answer_rows
from workers.inference.economy import Economics
from workers.inference.evidence import device_name, evidence
from workers.inference.examples import examples_of
from workers.inference.loading import loading_failures, use_adapter
from workers.inference.measured import read_measurements, write_measurements
from workers.inference.plot import plot_report
from workers.inference.report import evaluation_report, tokens_by_row
from workers.inference.rows import RowAnswer, RowError, RowRequest, prepare_row, read_rows

_ETA_SECONDS = 2.0  # time between two estimates of the remaining time


def run_evaluation(spec: EvaluationSpec, emit: Emit) -> Finished:
    _check(spec)
    with loading_failures():
        tokenizer = Tokenizer.load(Path(spec.model_dir))
        arms = load_arms(spec)
    rows, refused = _held_out(spec, tokenizer, arms.plain)
    warm_up(arms, rows, tokenizer=tokenizer)
    measurements = _measure_all(spec, arms, rows, tokenizer, emit)
    distribution = compare_distributions(arms, rows)
    report = evaluation_report(
        measurements,
        drafter=spec.drafter,
        model=spec.model_name,
        dtype=str(arms.plain.model.dtype).removeprefix("torch."),
        weights=spec.weights,
        engine=_options(arms.plain),
        device=str(arms.plain.model.device),
        max_tokens=spec.max_tokens,
        repeats=spec.repeats,
        rows_refused=refused,
        row_invariance=arms.plain.row_invariance,
        system_fingerprint=str(arms.plain.fingerprint()),
        economics=Economics(spec.price_per_gpu_hour, spec.training_seconds),
        distribution=distribution,
        model_answers=_answers_without_adapter(spec, arms, rows, tokenizer),
    )
    if spec.reports_arms:
        report |= arms_report(measurements, spec)
        report["definitions"] = report["definitions"] | ARM_DEFINITIONS
    lowest = min(measurements, key=lambda m: m.concurrency)
    contents = {
        "evidence": evidence(spec, rows, measurements, report),
        "examples": examples_of(lowest.speculative.answers, tokenizer),
    }
    return _write(report, contents, Path(spec.output_dir))


def _check(spec: EvaluationSpec) -> None:
    if not spec.concurrencies or min(spec.concurrencies) < 1 or spec.repeats < 1:
        raise UserConfigError(
            "invalid_evaluation",
            f"concurrencies and repeats must be at least 1, got {list(spec.concurrencies)} and {spec.repeats}",
        )
    if spec.max_concurrency is not None and max(spec.concurrencies) > spec.max_concurrency:
        raise UserConfigError(
            "concurrency_too_high",
            f"concurrencies must be at most {spec.max_concurrency}, the max_concurrency of the engine, "
            f"got {max(spec.concurrencies)}",
        )


def engine_config(spec: EvaluationSpec) -> EngineConfig:
    """Returns the engine's options, with KV caches as large as fit for all arms together.

    Raises: ModelTooLarge: the model and one sequence in each arm do not fit. ModelNotLoadable: as `read_config`.
    """
    config = EngineConfig(
        max_batch_size=spec.max_concurrency or max(spec.concurrencies),
        max_seq_len=spec.max_context,
        dtype=spec.dtype,
        weights=spec.weights,
        kv_dtype=spec.kv_dtype,
        draft_budget=spec.draft_budget,
        device=spec.device,
    )
    return fit(
        config,
        Path(spec.model_dir),
        memory_bytes=spec.memory_bytes,
        memory_share=spec.memory_share,
        speculator_dir=Path(spec.speculator_dir) if spec.speculator_dir else None,
        further_speculator_dirs=[Path(arm.speculator_dir) for arm in spec.compare_with if arm.speculator_dir],
        num_engines=EVALUATION_ENGINES + len(spec.compare_with),
    )


def _options(engine: Engine) -> dict[str, str | int | None]:
    """Returns the options with which all arms ran, in the form of a deployment's field `engine`."""
    config = engine.config
    return {
        "max_concurrency": config.max_batch_size,
        "max_context": engine.max_seq_len,
        "weights": config.weights,
        "kv_dtype": str(engine.model.dtype).removeprefix("torch."),
        "kv_tokens": engine.cache.num_slots,
        "draft_budget": config.draft_budget,
    }


def load_arms(spec: EvaluationSpec) -> Arms:
    """Loads the engines with one copy of the weights. If the speculator has a LoRA adapter, all engines apply it.

    The further arms must not have adapters, because their answers are compared with those of the plain arm.
    """
    model_dir, speculator = Path(spec.model_dir), Path(spec.speculator_dir) if spec.speculator_dir else None
    config = engine_config(spec)
    model = load_model(model_dir, dtype=spec.dtype, weights=spec.weights, device=spec.device)

    def engine(drafter: str, folder: str | None) -> Engine:
        path = Path(folder) if folder else None
        return Engine(model, load_drafter(drafter, model, path, model_dir=model_dir), config)

    arms = Arms(
        plain=Engine(model, NoDrafter(), config),
        suffix=engine("suffix", None),
        speculative=engine(spec.drafter, spec.speculator_dir),
        further={arm.name: engine(arm.drafter, arm.speculator_dir) for arm in spec.compare_with},
    )
    verdict, fingerprint = check_row_invariance(model), fingerprint_of(model_dir, model)
    for each in arms.engines.values():
        each.row_invariance, each.base_fingerprint = verdict, fingerprint
        apply_adapter(each, spec.drafter, speculator)
        use_adapter(each, spec.adapter_dir)
    return arms


def _answers_without_adapter(
    spec: EvaluationSpec, arms: Arms, rows: Sequence[RowRequest], tokenizer: Tokenizer
) -> dict[int, tuple[int, ...]] | None:
    """Returns the named model's answers without the speculator's adapter, by row.

    Returns None if the speculator has no adapter, because the plain arm then gives these answers. The adapter in
    `spec.adapter_dir` counts as part of the named model.
    """
    adapters = arms.plain.adapters
    if spec.adapter_dir is not None:
        return None
    if (adapter := adapters.default) is None:
        return None
    adapters.default = None  # not a fourth engine, which would need memory for its own KV cache
    try:
        found = answer_rows(arms.plain, rows, tokenizer=tokenizer, concurrency=max(spec.concurrencies))
        return tokens_by_row(answer for answer in found if isinstance(answer, RowAnswer))
    finally:
        adapters.default = adapter


def _held_out(spec: EvaluationSpec, tokenizer: Tokenizer, engine: Engine) -> tuple[list[RowRequest], int]:
    """Returns the rows to answer and the number of rows that were refused."""
    rows, refused = [], 0
    with closing(compiler_for(engine, tokenizer)) as grammars:
        for row in read_rows(Path(spec.prompts_path)):
            prepared = prepare_row(
                row,
                tokenizer=tokenizer,
                grammars=grammars,
                max_seq_len=engine.max_seq_len,
                seed_key=spec.job_id,
                max_tokens=spec.max_tokens,
            )
            if isinstance(prepared, RowError):
                refused += 1
            else:
                rows.append(prepared)
    if not rows:
        raise InvalidInputError("no_held_out_prompts", f"no row of {refused} can be answered")
    return rows, refused


def _measure_all(
    spec: EvaluationSpec, arms: Arms, rows: Sequence[RowRequest], tokenizer: Tokenizer, emit: Emit
) -> list[Measurement]:
    environment = {"device": device_name(str(arms.plain.model.device)), "build": build_identity()}
    measurements = read_measurements(Path(spec.checkpoint_dir), rows, tokenizer, environment)
    per_concurrency = len(arms.engines) * len(rows) * spec.repeats
    reporter = ProgressReporter(
        emit, total=per_concurrency * len(spec.concurrencies), done=per_concurrency * len(measurements)
    )
    for concurrency in spec.concurrencies[len(measurements) :]:
        reporter.start_concurrency()
        measurement = measure(
            arms,
            rows,
            tokenizer=tokenizer,
            concurrency=concurrency,
            repeats=spec.repeats,
            on_answer=reporter.count_answer,
        )
        measurements.append(measurement)
        reporter.report_figures(concurrency, _figures(measurement))
        folder = Path(spec.checkpoint_dir) / str(len(measurements))
        write_measurements(folder, measurements, environment)
        emit(Checkpoint(path=str(folder), step=len(measurements)))
    return measurements


class ProgressReporter:
    """Emits progress: completed answers, the latest figures, and the estimated remaining time.

    The estimate assumes that every remaining answer takes as long as the answers at the current concurrency. It is too
    long while lower concurrencies are measured, because higher concurrencies are faster.
    """

    def __init__(self, emit: Emit, *, total: int, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._total = total
        self._clock = clock
        self._done = done
        self._figures: dict[str, float] = {}
        self.start_concurrency()

    def start_concurrency(self) -> None:
        """Starts the clock for the next concurrency."""
        self._began_at, self._done_before = self._clock(), self._done
        self._estimated_at = self._began_at

    def count_answer(self) -> None:
        self._done += 1
        self._emit(Progress(done=self._done, total=self._total, unit="answers"))
        if self._clock() - self._estimated_at >= _ETA_SECONDS:
            self._emit_metrics()

    def report_figures(self, concurrency: int, figures: dict[str, float]) -> None:
        self._figures = {"concurrency": float(concurrency), **figures}
        self._emit_metrics()

    def _emit_metrics(self) -> None:
        self._estimated_at = self._clock()
        seconds_per_answer = (self._estimated_at - self._began_at) / max(1, self._done - self._done_before)
        data = {**self._figures, "eta_seconds": seconds_per_answer * (self._total - self._done)}
        self._emit(Metrics(step=self._done, data=data))


def _figures(measurement: Measurement) -> dict[str, float]:
    return {
        "speedup": measurement.speedup(),
        "speedup_over_suffix": measurement.speedup(over=SUFFIX),
        "acceptance_length": measurement.speculative.speculation.mean_acceptance_length,
        "tokens_per_second_plain": measurement.plain.tokens_per_second,
        "tokens_per_second_suffix": measurement.suffix.tokens_per_second,
        "tokens_per_second_speculative": measurement.speculative.tokens_per_second,
    }


def _write(report: dict[str, Any], contents: dict[str, Any], folder: Path) -> Finished:
    """contents: the contents of evidence.json and examples.json, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"report": "report.json", "plot": "report.png", "drawing": "report.svg"}
    files |= {name: f"{name}.json" for name in contents}
    paths = {name: folder / file for name, file in files.items()}
    paths["report"].write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    for name, values in contents.items():
        paths[name].write_text(json.dumps(values, indent=2) + "\n")
    for name in ("plot", "drawing"):
        plot_report(report, paths[name])
    return Finished(result=report, artifacts={name: str(path) for name, path in paths.items()})
