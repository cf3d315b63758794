"""Shows the progress of a pipeline: as bars on a terminal, otherwise as a line for each change and every 15 seconds."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from slipstream import Pipeline, Stage

_STAGE_NOTES = {
    "distil": "the model answers the prompts",
    "train": "the speculator learns from the answers",
    "evaluate": "held-out prompts with and without the speculator",
    "gate": "the report is checked against the gate",
    "deploy": "an endpoint starts",
}
_FINAL_STATUSES = ("succeeded", "failed", "skipped", "cancelled")


def figures(stage: Stage) -> str:
    """Returns the stage's latest metrics as a short text."""
    metrics = stage.metrics
    parts = []
    for key, text in (
        ("loss", "loss {:.2f}"),
        ("acceptance_length", "acceptance length {:.2f}"),
        ("speedup", "{:.2f}x"),
        ("speedup_over_suffix", "{:.2f}x over suffix decoding"),
    ):
        if isinstance(metrics.get(key), int | float):
            parts.append(text.format(metrics[key]))
    return ", ".join(parts)


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, pipeline: Pipeline) -> None: ...


class Bars:
    """Shows one bar per stage on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[mark]} {task.description:<9}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, pipeline: Pipeline) -> None:
        for stage in pipeline.stages:
            task = self._task(stage.name)
            if stage.status == "running":
                self._progress.start_task(task)
            done, total = (stage.progress.done, stage.progress.total) if stage.progress else (0, None)
            if stage.status == "succeeded":
                done = total = total or 1
            note = figures(stage) or _STAGE_NOTES.get(stage.name, "")
            mark = {"succeeded": "[green]✓[/]", "failed": "[red]✗[/]", "running": "[cyan]▸[/]"}.get(stage.status, " ")
            self._progress.update(task, completed=done, total=total, note=note, mark=mark)
            if stage.status in _FINAL_STATUSES:
                self._progress.stop_task(task)

    def _task(self, name: str) -> TaskID:
        if name not in self._tasks:
            note = _STAGE_NOTES.get(name, "")
            self._tasks[name] = self._progress.add_task(name, start=False, total=None, note=note, mark=" ")
        return self._tasks[name]


class Lines:
    """Prints a line when a stage starts or ends, and every 15 seconds while it runs."""

    def __init__(self, console: Console, *, every_seconds: float = 15.0) -> None:
        self._console = console
        self._every_seconds = every_seconds
        self._shown_status: dict[str, str] = {}  # by stage
        self._last_line_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, pipeline: Pipeline) -> None:
        is_due = time.monotonic() - self._last_line_at >= self._every_seconds
        for stage in pipeline.stages:
            has_changed = stage.status != self._shown_status.get(stage.name, "pending")
            if has_changed or (is_due and stage.status == "running"):
                self._shown_status[stage.name] = stage.status
                self._last_line_at = time.monotonic()
                self._console.print(describe(stage), markup=False, highlight=False)


def describe(stage: Stage) -> str:
    counted = f" {stage.progress.done}/{stage.progress.total} {stage.progress.unit}" if stage.progress else ""
    note = figures(stage)
    return f"    {stage.name}: {stage.status}{counted}{f' ({note})' if note else ''}"


def make_view(console: Console) -> View:
    return Bars(console) if console.is_terminal else Lines(console)
