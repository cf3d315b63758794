"""Decides which rows of an ended batch are answered again by the batch that resumes or repairs it.

    class        rows
    unfinished   without a response: the row never ran, its result was lost, or it crashed its worker
    failed       ran without an answer: the request was refused, its result was lost, or it crashed its worker
    cut          the answer ended at a limit of its length

A row may be in two classes. A resumed batch answers the unfinished rows again, and a repaired batch the rows of the
classes that the customer names. All other rows keep their results.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from control.core.api.errors import ApiError
from control.models.engines.planning import context_limit
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.shards import ROW_CRASHED_WORKER
from control.workflows.batches.assemble import UNANSWERED
from control.workflows.batches.models import Batch
from control.workflows.batches.results import LOST

_NEVER_RAN = frozenset(code for code, _ in UNANSWERED.values())
_WITHOUT_RESPONSE = _NEVER_RAN | {LOST[0], ROW_CRASHED_WORKER}


class RowClass(StrEnum):
    UNFINISHED = "unfinished"
    FAILED = "failed"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The rows to answer again, and the limit of their answers."""

    classes: frozenset[RowClass] = frozenset({RowClass.UNFINISHED})
    max_tokens: int | None = None  # the limit of each new answer; None: the limits in the input file
    context: int | None = None  # maximum tokens of a prompt and its answer together; None: unknown

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Returns the choice that a batch makes among the rows of the batch that it resumes or repairs."""
        if batch.repair is None:
            return cls()
        return cls(
            classes=frozenset(RowClass(name) for name in batch.repair["rows"]),
            max_tokens=batch.repair["max_tokens"],
            context=context_of(batch),
        )

    def rerun(self, entry: Mapping[str, Any]) -> "Rerun | None":
        """Returns how the row is answered again, or None if it keeps its result. Args: entry: the row's result."""
        if not classes_of(entry) & self.classes:
            return None
        if entry["ok"] and not self._allows_more(entry):
            return None
        body = entry["output"]["response"]["body"] if entry["ok"] else {}
        # Entries of earlier releases have no field `attempts`; such a row had at most one attempt.
        attempts = entry["output"].get("attempts", int(not _never_ran(entry)))
        return Rerun(earlier_attempts=attempts, max_tokens=self.max_tokens, seed=body.get("seed"))

    def _allows_more(self, answer: Mapping[str, Any]) -> bool:
        """Returns whether a new answer to the row can be longer than this one, which ended at a limit.

        If it cannot, the customer would pay for the same tokens again, or get a refusal in place of the answer.
        """
        if self.max_tokens is None or self.max_tokens <= len(answer["completion_token_ids"]):
            return False
        limits = answer["output"]["response"]["body"].get("limits") or {}
        num_tokens = len(answer["prompt_token_ids"]) + self.max_tokens
        return limits.get("set_by") != "context" and (self.context is None or num_tokens <= self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How a row is answered again."""

    earlier_attempts: int
    max_tokens: int | None = None  # None: the limit in the input file
    seed: int | None = None  # the seed of a cut answer, so that the new answer begins with the same tokens

    def applied_to(self, line: bytes) -> bytes:
        """Returns the normalised row with the new limit and seed. Args: line: the row of the input file."""
        row = json.loads(line)
        if self.max_tokens is not None:
            row["body"].pop("max_completion_tokens", None)
            row["body"]["max_tokens"] = self.max_tokens
        if self.seed is not None:
            row["body"]["seed"] = self.seed
        row["earlier_attempts"] = self.earlier_attempts
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"


class RerunWriter:
    """Writes the normalised rows of a batch in their order, and changes the rows that are answered again."""

    def __init__(self, write: Callable[[bytes], object], reruns: Mapping[int, Rerun]) -> None:
        self._write, self._reruns = write, reruns
        self._row = 0

    def write(self, line: bytes) -> None:
        rerun = self._reruns.get(self._row)
        self._write(line if rerun is None else rerun.applied_to(line))
        self._row += 1


def classes_of(entry: Mapping[str, Any]) -> frozenset[RowClass]:
    """Returns the classes of a row by its result, which has the form of an entry in a shard."""
    if entry["ok"]:
        return frozenset({RowClass.CUT} if entry["finish_reason"] == "length" else ())
    if _never_ran(entry):
        return frozenset({RowClass.UNFINISHED})
    if entry["output"]["response"] is None:
        return frozenset({RowClass.UNFINISHED, RowClass.FAILED})
    return frozenset({RowClass.FAILED})


def choice_check(batch: Batch, choice: Choice) -> None:
    """Checks a repair of an ended batch without reading its rows. Raises: ApiError: 400."""
    if RowClass.CUT in choice.classes and choice.max_tokens is None:
        message = "max_tokens: This field is required for 'cut', because the same limits would give the same answers."
        raise ApiError(400, message, "missing_required_parameter", "max_tokens")
    context = context_of(batch)
    if choice.max_tokens is not None and context is not None and choice.max_tokens >= context:
        message = f"max_tokens must leave room for a prompt in the context of {context} tokens, got {choice.max_tokens}"
        raise ApiError(400, message, "max_tokens_too_large", "max_tokens")
    if not _may_have_rows(batch, choice.classes):
        names = " or ".join(f"'{name}'" for name in RowClass if name in choice.classes)
        raise ApiError(400, f"Batch {batch.pk} has no rows that are {names}.", "nothing_to_repair", "rows")


def context_of(batch: Batch) -> int | None:
    assert batch.base_model is not None, "validation sets the model"
    return context_limit(EngineOptions.model_validate(batch.engine or {}), batch.base_model)


def _may_have_rows(batch: Batch, classes: frozenset[RowClass]) -> bool:
    """Whether the counts of the batch allow rows of these classes. Earlier releases did not count cut answers."""
    codes = set(batch.errors_by_code)
    return (
        (RowClass.UNFINISHED in classes and not codes.isdisjoint(_WITHOUT_RESPONSE))
        or (RowClass.FAILED in classes and not codes <= _NEVER_RAN)
        or (RowClass.CUT in classes and (batch.truncated is None or batch.truncated["unfinished"] > 0))
    )


def _never_ran(entry: Mapping[str, Any]) -> bool:
    error = entry["output"]["error"]
    return error is not None and error["code"] in _NEVER_RAN
