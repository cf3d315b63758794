"""Evaluation of a speculator: held-out prompts with and without it, tokens compared, time measured.

The baseline is the same engine on the same weights with no drafter, at the same concurrency: its fastest plain
decoding. Equality is judged on every run against the first plain one: any token that differs anywhere counts.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.grammars import GrammarCompiler
from engine.load import apply_adapter, load_drafter, load_model
from engine.loop import Engine
from engine.tokenizer import Tokenizer
from workers.contracts import EvaluationSpec, Finished, Metrics, Progress
from workers.emitter import Emit
from workers.failures import InvalidInputError, UserConfigError
from workers.jobs.comparison import Arms, Measurement, measure, warm_up
from workers.jobs.loading import loading_failures
from workers.jobs.plot import plot_report
from workers.jobs.report import evaluation_report
from workers.jobs.rows import RowError, RowRequest, prepare_row, read_rows


def run_evaluation(spec: EvaluationSpec, emit: Emit) -> Finished:
    _check(spec)
    with loading_failures():
        tokenizer = Tokenizer.load(Path(spec.model_dir))
        arms = load_arms(spec)
    rows, refused = _held_out(spec, tokenizer, arms.plain.max_seq_len)
    warm_up(arms, rows, tokenizer=tokenizer)
    measurements = _measure_all(spec, arms, rows, tokenizer, emit)
    report = evaluation_report(
        measurements,
        drafter=spec.drafter,
        model=spec.model_name,
        dtype=str(arms.plain.model.dtype).removeprefix("torch."),
        weights=spec.weights,
        device=str(arms.plain.model.device),
        max_tokens=spec.max_tokens,
        repeats=spec.repeats,
        rows_refused=refused,
    )
    return _write(report, Path(spec.output_dir))


def _check(spec: EvaluationSpec) -> None:
    if not spec.concurrencies or min(spec.concurrencies) < 1 or spec.repeats < 1:
        raise UserConfigError(
            "invalid_evaluation",
            f"concurrencies and repeats must be at least 1, got {list(spec.concurrencies)} and {spec.repeats}",
        )


def load_arms(spec: EvaluationSpec) -> Arms:
    """Both arms share one copy of the weights; where the speculator brings an adapter, both answer with it."""
    model_dir, speculator = Path(spec.model_dir), Path(spec.speculator_dir) if spec.speculator_dir else None
    model = load_model(model_dir, dtype=spec.dtype, weights=spec.weights, device=spec.device)
    config = EngineConfig(
        max_batch_size=max(spec.concurrencies), dtype=spec.dtype, weights=spec.weights, device=spec.device
    )
    drafter = load_drafter(spec.drafter, model, speculator, model_dir=model_dir)
    arms = Arms(plain=Engine(model, NoDrafter(), config), speculative=Engine(model, drafter, config))
    for engine in (arms.plain, arms.speculative):
        apply_adapter(engine, spec.drafter, speculator)
    return arms


def _held_out(spec: EvaluationSpec, tokenizer: Tokenizer, max_seq_len: int) -> tuple[list[RowRequest], int]:
    rows, refused = [], 0
    grammars = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    for row in read_rows(Path(spec.prompts_path)):
        prepared = prepare_row(
            row,
            tokenizer=tokenizer,
            grammars=grammars,
            max_seq_len=max_seq_len,
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
    total = 2 * len(rows) * len(spec.concurrencies) * spec.repeats
    done = 0

    def on_answer() -> None:
        nonlocal done
        done += 1
        emit(Progress(done=done, total=total, unit="answers"))

    measurements = []
    for concurrency in spec.concurrencies:
        found = measure(
            arms, rows, tokenizer=tokenizer, concurrency=concurrency, repeats=spec.repeats, on_answer=on_answer
        )
        measurements.append(found)
        emit(Metrics(step=concurrency, data=_figures(found)))
    return measurements


def _figures(found: Measurement) -> dict[str, float]:
    return {
        "concurrency": float(found.concurrency),
        "speedup": found.speedup,
        "acceptance_length": found.speculative.speculation.mean_acceptance_length,
        "tokens_per_second_plain": found.plain.tokens_per_second,
        "tokens_per_second_speculative": found.speculative.tokens_per_second,
    }


def _write(report: dict[str, Any], folder: Path) -> Finished:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    plot_report(report, folder / "report.png")
    return Finished(
        result=report, artifacts={"report": str(folder / "report.json"), "plot": str(folder / "report.png")}
    )
