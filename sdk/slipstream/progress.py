"""Shows on stderr the progress of the object for which a `wait` method waits."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slipstream.types import Batch, Evaluation, Pipeline


class Watch:
    """Shows bars in a terminal or a notebook; elsewhere, it prints nothing."""

    def __init__(self, console: Console | None = None, *, disable: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
        console = console or Console(stderr=True, highlight=False)
        disable = disable or not (console.is_terminal or console.is_jupyter)
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, disable=disable)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, value: Any) -> None:
        """Shows the state of an object of the service. A batch, pipeline or evaluation also gets progress bars."""
        match value:
            case Batch():
                done = value.num_completed + value.num_failed
                self._show("batch", f"{value.id} {value.status}", done, value.num_rows, "rows")
            case Pipeline():
                self._pipeline(value)
            case Evaluation():
                self._evaluation(value)
            case _:
                state = getattr(value, "status", None) or getattr(value, "state", "")
                self._show("object", f"{value.id} {state}", 0, 0, "")

    def _pipeline(self, pipeline: Pipeline) -> None:
        for stage in pipeline.stages:
            if stage.status == "pending":
                continue
            done, total, unit = 0, 0, ""
            if stage.progress is not None:
                done, total, unit = stage.progress.done, stage.progress.total, stage.progress.unit
            elif stage.status != "running":
                done, total = 1, 1
            self._show(stage.name, f"{stage.name} {stage.status}", done, total, unit)

    def _evaluation(self, evaluation: Evaluation) -> None:
        done, total = (evaluation.progress.done, evaluation.progress.total) if evaluation.progress else (0, 0)
        seconds_left = evaluation.metrics.get("eta_seconds")
        unit = "answers" if seconds_left is None else f"answers, {seconds_left:.0f} s left"
        self._show("evaluation", f"{evaluation.id} {evaluation.status}", done, total, unit)

    def _show(self, key: str, description: str, done: int, total: int, unit: str) -> None:
        count = f"{done}/{total} {unit}" if unit and total else ""
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(description, total=total or None, count=count)
        self._progress.update(
            self._tasks[key], description=description, completed=done, total=total or None, count=count
        )
