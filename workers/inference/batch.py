"""Batch inference: one engine answers the rows of all given shards, and each complete shard is written to a file.

    input rows ─ parse and tokenize ─ engine ─ output lines by shard ─ write, sync, rename ─ event

While the last long answers of one shard are still being decoded, the engine already answers rows of the next shard.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.grammars.compiler import compiler_for
from engine.load import load_engine
from engine.planned import fit, fit_rows
from engine.tokenizer import Tokenizer
from workers.contracts import BatchSpec, Finished, Progress, ShardDone, ShardRange
from workers.emitter import Emit
from workers.failures import rows_at_once
from workers.inference.driver import RowEngine, answer_rows
from workers.inference.loading import loading_failures, use_adapter
from workers.inference.rows import (
    InputRow,
    RowAnswer,
    RowError,
    RowRequest,
    error_response,
    output_row,
    prepare_row,
    read_rows,
)

logger = logging.getLogger(__name__)


def run_batch(spec: BatchSpec, emit: Emit) -> Finished:
    with loading_failures():
        tokenizer = Tokenizer.load(Path(spec.model_dir))
        config = engine_config(spec)
    with rows_at_once(config.max_batch_size):
        with loading_failures():
            engine = load_engine(
                Path(spec.model_dir),
                drafter=spec.drafter,
                speculator_dir=Path(spec.speculator_dir) if spec.speculator_dir else None,
                config=config,
            )
        use_adapter(engine, spec.adapter_dir)
        return answer_shards(
            spec,
            emit,
            engine=engine,
            tokenizer=tokenizer,
            max_seq_len=engine.max_seq_len,
            max_rows=engine.config.max_batch_size,
            fingerprint=str(engine.fingerprint()),
        )


def engine_config(spec: BatchSpec) -> EngineConfig:
    """Returns the engine's options. The KV cache is as large as the memory allows.

    If `spec.max_batch_size` is None, the engine answers as many rows at once as fit into the memory, up to the limit of
    the device (`MAX_ROWS`).

    Raises: ModelTooLarge: the model and one row do not fit. ModelNotLoadable: config.json cannot be read.
    """
    config = EngineConfig(
        max_batch_size=spec.max_batch_size or EngineConfig().max_batch_size,
        max_seq_len=spec.max_context,
        dtype=spec.dtype,
        weights=spec.weights,
        kv_dtype=spec.kv_dtype,
        draft_budget=spec.draft_budget,
        device=spec.device,
    )
    return (fit_rows if spec.max_batch_size is None else fit)(
        config,
        Path(spec.model_dir),
        memory_bytes=spec.memory_bytes,
        memory_share=spec.memory_share,
        speculator_dir=Path(spec.speculator_dir) if spec.speculator_dir else None,
    )


def answer_shards(
    spec: BatchSpec,
    emit: Emit,
    *,
    engine: RowEngine,
    tokenizer: Tokenizer,
    max_seq_len: int,
    max_rows: int,
    fingerprint: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Finished:
    """Answers the rows of the spec's shards, and emits an event after each complete shard and after each step.

    Args:
        max_rows: maximum number of rows that the engine answers at once.
        fingerprint: `system_fingerprint` of the answers.
        clock: returns Unix seconds for the field `created` of the answers.
    """
    shards = [_Shard(shard) for shard in sorted(spec.shards, key=lambda s: s.row_from)]
    lines = _Lines(spec, clock, fingerprint)
    total = sum(shard.num_rows for shard in shards)
    done, tokens = 0, 0
    started = time.monotonic()
    rows = _prepared(spec, shards, tokenizer, engine, max_seq_len)
    # The first event tells the supervisor that the model is loaded, so that it attributes any later crash to a row.
    emit(Progress(done=done, total=total, unit="rows"))
    for outcome in answer_rows(engine, rows, tokenizer=tokenizer, concurrency=max_rows):
        if outcome is None:
            emit(Progress(done=done, total=total, unit="rows"))
            continue
        row = outcome.row if isinstance(outcome, RowError) else outcome.request.row
        shard = next(s for s in shards if s.range.row_from <= row.number < s.range.row_to)
        line = lines.for_error(outcome) if isinstance(outcome, RowError) else lines.for_answer(outcome)
        shard.add_line(row.number, line)
        done += 1
        if shard.is_complete:
            emit(shard.write(Path(spec.output_dir)))
            tokens += shard.usage["completion_tokens"]
    emit(Progress(done=done, total=total, unit="rows"))
    seconds = time.monotonic() - started
    return Finished(result=_result(shards, tokens, seconds), artifacts={})


def _prepared(
    spec: BatchSpec, shards: Sequence["_Shard"], tokenizer: Tokenizer, engine: RowEngine, max_seq_len: int
) -> Iterator[RowRequest | RowError]:
    """Yields the rows of the given shards in file order, parsed and tokenized."""
    ranges = [shard.range for shard in shards]
    last = max((r.row_to for r in ranges), default=0)
    with closing(compiler_for(engine, tokenizer)) as grammars:
        for row in read_rows(Path(spec.input_path), row_to=last):
            if any(r.row_from <= row.number < r.row_to for r in ranges):
                prepared = prepare_row(
                    row, tokenizer=tokenizer, grammars=grammars, max_seq_len=max_seq_len, seed_key=spec.job_id
                )
                if spec.continue_cut_answers and isinstance(prepared, RowRequest):
                    prepared = prepared.continued(max_tokens=spec.max_continued_tokens, max_seq_len=max_seq_len)
                yield prepared


def _result(shards: Sequence["_Shard"], tokens: int, seconds: float) -> dict[str, Any]:
    return {
        "completed": sum(shard.completed for shard in shards),
        "failed": sum(shard.failed for shard in shards),
        "completion_tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 2) if seconds > 0 else 0.0,
    }


class _Lines:
    """Builds the lines of shard files."""

    def __init__(self, spec: BatchSpec, clock: Callable[[], float], fingerprint: str | None) -> None:
        self._id_suffix = spec.job_id.rsplit("_", 1)[-1]
        self._model_name = spec.model_name
        self._clock = clock
        self._fingerprint = fingerprint

    def for_answer(self, answer: RowAnswer) -> dict[str, Any]:
        row = answer.request.row
        body = answer.body(
            response_id=f"{row.response_prefix}{self._id_suffix}_{row.number}",
            created=int(self._clock()),
            model=self._model_name,
            fingerprint=self._fingerprint,
        )
        return self._line(row, ok=True, status=200, body=body) | {
            "prompt_token_ids": list(answer.request.request.prompt_token_ids),
            "completion_token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "cut": answer.cut,
        }

    def for_error(self, refused: RowError) -> dict[str, Any]:
        return self._line(refused.row, ok=False, status=refused.error.status, body=error_response(refused.error))

    def _line(self, row: InputRow, *, ok: bool, status: int, body: dict[str, Any]) -> dict[str, Any]:
        output = output_row(
            row_id=f"batch_req_{self._id_suffix}_{row.number}",
            row=row,
            status=status,
            request_id=f"req_{self._id_suffix}_{row.number}",
            body=body,
        )
        return {"row": row.number, "custom_id": row.custom_id, "ok": ok, "output": output}


@dataclass(slots=True)
class _Shard:
    """A shard and its output lines so far; rows are answered in any order."""

    range: ShardRange
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    completed: int = 0
    failed: int = 0
    usage: dict[str, int] = field(
        default_factory=lambda: {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    )

    @property
    def num_rows(self) -> int:
        return self.range.row_to - self.range.row_from

    @property
    def is_complete(self) -> bool:
        return self.completed + self.failed == self.num_rows

    def add_line(self, number: int, line: dict[str, Any]) -> None:
        assert number not in self.lines
        self.lines[number] = line
        if not line["ok"]:
            self.failed += 1
            return
        self.completed += 1
        for name, count in line["output"]["response"]["body"]["usage"].items():
            if name in self.usage:
                self.usage[name] += count

    def write(self, folder: Path) -> ShardDone:
        """Effects: writes the shard's file, completely or not at all, and frees the memory of the lines."""
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / f"shard-{self.range.shard_no:06d}.jsonl"
        partial = folder / f".{final.name}.partial"
        with partial.open("w", encoding="utf-8") as file:
            for number in sorted(self.lines):
                file.write(json.dumps(self.lines[number], ensure_ascii=False, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(final)
        self.lines.clear()
        logger.info("shard written", extra={"shard": self.range.shard_no})
        return ShardDone(
            shard_no=self.range.shard_no,
            path=str(final),
            completed=self.completed,
            failed=self.failed,
            usage=dict(self.usage),
        )
