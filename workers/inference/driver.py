"""Keeps an engine's batch full: as soon as the answer to one row is complete, the next row is added."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from engine.errors import NonFiniteLogits, RequestTooLong
from engine.fields import InvalidRequest
from engine.request import FinishReason, Request, StepOutput
from engine.tokenizer import Tokenizer
from workers.inference.rows import RowAnswer, RowError, RowRequest


class RowEngine(Protocol):
    """The part of `engine.loop.Engine` that is used here."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def add(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[StepOutput]: ...


def answer_rows(
    engine: RowEngine, rows: Iterable[RowRequest | RowError], *, tokenizer: Tokenizer, concurrency: int
) -> Iterator[RowAnswer | RowError | None]:
    """Yields completed answers and the errors of refused or failed rows in any order, and None after every step.

    The caller can report progress at each None. `rows` is read lazily: at most `concurrency` rows are in the engine.
    """
    source = iter(rows)
    answers: dict[str, RowAnswer] = {}
    cancelled: set[str] = set()
    exhausted = False
    while not exhausted or answers or cancelled:
        while not exhausted and len(answers) < concurrency:
            entry = next(source, None)
            if entry is None:
                exhausted = True
            elif refused := _add(engine, entry, answers, tokenizer):
                yield refused
        for output in engine.step():
            if output.request_id in cancelled:
                cancelled.remove(output.request_id)  # the step after a cancellation reports the request once more
                continue
            answer = answers[output.request_id]
            answer.push(output)
            if answer.finish_reason is None:
                continue
            del answers[output.request_id]
            if output.failure is not None and answer.finish_reason is FinishReason.FAILED:
                yield RowError(answer.request.row, _failure_of_row(output.failure))
                continue
            if output.finish_reason is None:  # a stop string ended the answer; the engine does not know stop strings
                engine.cancel(output.request_id)
                cancelled.add(output.request_id)
            yield answer
        yield None


def _failure_of_row(failure: NonFiniteLogits) -> InvalidRequest:
    return InvalidRequest(str(failure), code=failure.code, status=500)


def _add(
    engine: RowEngine, entry: RowRequest | RowError, answers: dict[str, RowAnswer], tokenizer: Tokenizer
) -> RowError | None:
    """Adds a row to the engine, and its empty answer to `answers`. Returns the error of a row that is refused."""
    if isinstance(entry, RowError):
        return entry
    try:
        engine.add(entry.request)
    except RequestTooLong as error:
        return RowError(entry.row, InvalidRequest(str(error), code="context_length_exceeded"))
    answers[entry.request.request_id] = RowAnswer(entry, tokenizer)
    return None
