"""Pages of evaluations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.models.catalog.models import Speculator
from control.operations.console.base import read_once, service_action
from control.operations.console.form_pages import FormAdmin
from control.operations.console.rendering import badge, error_text, link, number, pairs, progress_bar, table
from control.operations.console.sidebar import SidebarEntry
from control.queue.jobs.models import Job
from control.workflows.evaluations.capacity import Load, NotMeasuredError, capacity_plan
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.requests import CREATE_EVALUATION
from control.workflows.evaluations.services import evaluation_cancel

_ARM_HEADER = (
    "concurrency", "arm", "tokens per second", "tokens per pass", "equal answers", "latency (ms)", "first token (ms)",
    "between tokens (ms)",
)  # fmt: skip
_PAIR_HEADER = ("concurrency", "arm", "compared with", "speed", "95 % interval")
_CAPACITY_HEADER = ("concurrency", "without the speculator", "with it", "interval", "USD a month without", "with")
_LATENCIES = ("request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds")
_COMPARISON_FIELDS = ("arms", "speed_ratios")
ACTIVE = (Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED)


def _is_active(row: Evaluation) -> bool:
    return row.job.status in ACTIVE and row.job.cancel_requested_at is None


@admin.register(Evaluation)
class EvaluationAdmin(FormAdmin):
    scope = "speculators"
    sidebar = SidebarEntry("Serving", 5, "Evaluations", "speed")
    create_form = CREATE_EVALUATION
    list_display = ["id", "organization", "speculator", "state", "progress", "outputs", "created_at"]
    list_filter = ["job__status", "organization"]
    search_fields = ["id"]
    ordering = ["-id"]
    list_select_related = ["organization", "speculator__base_model", "job"]
    actions_detail = ["cancel"]
    fields = [
        "id", "organization", "the_speculator", "state", "progress", "outputs", "failure", *_COMPARISON_FIELDS,
        "report", "capacity", "prompts", "settings", "the_job", "created_at",
    ]  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Evaluation | None = None) -> Sequence[Any]:
        """Leaves out the tables of arms if the evaluation has no further arms."""
        fields: Sequence[Any] = super().get_fields(request, obj)
        if obj is not None and obj.job.result.get("arms"):
            return fields
        return [name for name in fields if name not in _COMPARISON_FIELDS]

    @admin.display(description="status", ordering="job__status")
    def state(self, row: Evaluation) -> SafeString:
        return badge(row, row.job.status, active=row.job.status in ACTIVE)

    @admin.display
    def progress(self, row: Evaluation) -> SafeString:
        return progress_bar(row, row.job.progress_done, row.job.progress_total, row.job.progress_unit)

    @admin.display(description="outputs, as certified")
    def outputs(self, row: Evaluation) -> str:
        return "–" if row.certificate is None else str(row.certificate["statement"]["result"])

    @admin.display(description="error")
    def failure(self, row: Evaluation) -> SafeString | str:
        return error_text(row.job.error)

    @admin.display(description="arms: median, 95th and 99th percentile of times")
    @read_once
    def arms(self, row: Evaluation) -> SafeString:
        titles, report = _titles(row), row.job.result
        points = [(point, arm) for arm in report["arms"] for point in arm["concurrencies"]]
        points.sort(key=lambda pair: int(pair[0]["concurrency"]))  # stable: the arms stay in their order
        lines = [_arm_line(point, arm, titles, report["prompts_held_out"]) for point, arm in points]
        return table(row, "arms", _ARM_HEADER, lines)

    @admin.display(description="speed of each pair of arms")
    @read_once
    def speed_ratios(self, row: Evaluation) -> SafeString:
        titles = _titles(row)
        lines = [_pair_line(pair, titles) for pair in row.job.result["pairs"]]
        return table(row, "pairs", _PAIR_HEADER, lines)

    @admin.display
    def report(self, row: Evaluation) -> SafeString:
        return pairs(row, "report", row.job.result)

    @admin.display(description="devices for 100 requests per second, at 70 % of the measured speed")
    @read_once
    def capacity(self, row: Evaluation) -> SafeString:
        return table(row, "capacity", _CAPACITY_HEADER, _capacity_lines(row))

    @admin.display
    def settings(self, row: Evaluation) -> SafeString:
        return pairs(row, "settings", row.settings)

    @admin.display(description="speculator")
    def the_speculator(self, row: Evaluation) -> SafeString | str:
        return link(row.speculator)

    @admin.display(description="prompts")
    def prompts(self, row: Evaluation) -> SafeString | str:
        return link(row.prompts_file)

    @admin.display(description="job")
    def the_job(self, row: Evaluation) -> SafeString | str:
        return link(row.job)

    @service_action("Cancel", "The evaluation ends without a report.", icon="cancel", danger=True, when=_is_active)
    def cancel(self, row: Evaluation) -> str:
        evaluation_cancel(evaluation=row)
        return "The evaluation will end within seconds."


def _capacity_lines(row: Evaluation) -> Iterable[Iterable[object]]:
    for point in row.job.result.get("concurrencies") or []:
        load = Load(requests_per_second=100.0, concurrency=point["concurrency"])
        try:
            plain, speculative = capacity_plan(row.job.result, load, speculator=row.speculator_id).arms
        except NotMeasuredError:
            return
        low, high = speculative.devices_low, speculative.devices_high
        interval = "–" if low is None else f"{low} to {high}"
        costs = [number(arm.cost_per_month) for arm in (plain, speculative)]
        yield point["concurrency"], plain.devices, speculative.devices, interval, *costs


def _titles(row: Evaluation) -> dict[str, SafeString | str]:
    """Returns the title of each arm in the tables: a link to its speculator, or the drafter's name."""
    names = [arm["name"] for arm in row.job.result["arms"]]
    speculators = Speculator.objects.filter(organization=row.organization).in_bulk(names)
    titles = {"none": "plain decoding", "suffix": "suffix decoding alone"}
    return {name: link(speculators[name]) if name in speculators else titles.get(name, name) for name in names}


def _arm_line(
    point: Mapping[str, Any], arm: Mapping[str, Any], titles: Mapping[str, SafeString | str], num_prompts: int
) -> Iterable[object]:
    times = [_milliseconds(point[name]) for name in _LATENCIES]
    equal = f"{arm['outputs_equal']} of {num_prompts}"
    speed, accepted = number(point["tokens_per_second"]), number(point["acceptance_length"])
    return (point["concurrency"], titles[arm["name"]], speed, accepted, equal, *times)


def _milliseconds(percentiles: Mapping[str, float] | None) -> str:
    if percentiles is None:
        return "–"
    return " / ".join(number(1000.0 * percentiles[name]) for name in ("p50", "p95", "p99"))


def _pair_line(pair: Mapping[str, Any], titles: Mapping[str, SafeString | str]) -> Iterable[object]:
    interval = "–" if pair["interval"] is None else "{} to {}".format(*(number(bound) for bound in pair["interval"]))
    ratio = format_html("<strong>{}×</strong>", number(pair["ratio"]))
    return (pair["concurrency"], titles[pair["arm"]], titles[pair["baseline"]], ratio, interval)
