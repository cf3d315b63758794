"""The opening of a speculator's page: its gain, speed over concurrency, acceptance by position, and example answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from control.models.catalog.models import Speculator
from control.operations.console.charts import Series, comparison
from control.operations.console.rendering import number
from control.operations.console.visitors import member_of
from control.queue.jobs.models import Job
from control.queue.jobs.state import TERMINAL
from control.workflows.pipelines.models import Pipeline
from control.workflows.speculators.answer_examples import answer_examples

_ARMS = (("plain", "plain decoding"), ("suffix", "suffix decoding alone"), ("speculative", "with this speculator"))


def speculator_opening(request: HttpRequest, row: Speculator, *, can_deploy: bool) -> SafeString:
    """Renders the opening. Only members see the examples, because these contain text of customers' files."""
    pipeline = None if row.status == Speculator.Status.READY else _pipeline(row)
    job, points = _job_in_progress(row, pipeline), row.report.get("concurrencies") or []
    context = {
        "row": row,
        "report": row.report,
        "is_active": row.status == Speculator.Status.TRAINING or job is not None,
        "job": job,
        "pipeline": pipeline,
        "concurrency": min((point["concurrency"] for point in points), default=None),
        "speed": _speed(points),
        "positions": _positions(row.report),
        "examples": () if member_of(request) is None else answer_examples(row),
        "can_deploy": can_deploy,
    }
    return render_to_string("console/openings/speculator.html", context)


def _job_in_progress(row: Speculator, pipeline: Pipeline | None) -> Job | None:
    """The job that trains or evaluates the speculator at the moment."""
    if row.status == Speculator.Status.TRAINING:
        return None if pipeline is None else pipeline.training_job
    latest = row.evaluations.exclude(job__status__in=TERMINAL).select_related("job").order_by("-pk").first()
    return None if latest is None else latest.job


def _pipeline(row: Speculator) -> Pipeline | None:
    """The pipeline that made the speculator; imported speculators have none."""
    return Pipeline.objects.filter(speculator=row).select_related("training_job").order_by("-pk").first()


def _speed(measured: Iterable[Mapping[str, Any]]) -> SafeString | str:
    """Plots answer tokens per second over concurrency. The points of the speculator's line are labelled with its
    speedup."""
    points = sorted(measured, key=lambda point: point["concurrency"])
    series = []
    for arm, title in _ARMS:
        found = (point.get(f"tokens_per_second_{arm}") for point in points)
        values = [value for value in found if value is not None]
        if points and len(values) == len(points):
            labels = [f"{number(point.get('speedup'))}×" if arm == "speculative" else "" for point in points]
            series.append(Series(name=arm, title=title, values=values, labels=labels))
    if not series:
        return ""
    ticks = [str(point["concurrency"]) for point in points]
    return comparison("Answer tokens per second", series, ticks=ticks, axis="answers at once")


def _positions(report: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Returns, for each position in the draft (from 1), the percentage of passes that accepted the position."""
    rates = report.get("acceptance_rate_per_position") or []
    return [(place, 100.0 * rate) for place, rate in enumerate(rates, start=1)]
