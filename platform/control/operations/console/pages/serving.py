"""Pages of base models, speculators with their reports, and deployments."""

from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.models.catalog.intake import base_model_delete
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.requests import REGISTER_MODEL
from control.operations.console.base import read_once, service_action
from control.operations.console.compare import MAX_SPECULATORS
from control.operations.console.form_pages import FormAdmin, form_action
from control.operations.console.lineage import lineage_link
from control.operations.console.logs import log_tail
from control.operations.console.openings.deployments import REFRESHED_STATES, deployment_opening
from control.operations.console.openings.speculators import speculator_opening
from control.operations.console.rendering import badge, duration, error_text, is_nested, link, number, pairs, table
from control.operations.console.sidebar import SidebarEntry
from control.serving.deployments.cost import DeploymentCost
from control.serving.deployments.launchers.engine_process import log_path
from control.serving.deployments.models import Deployment
from control.serving.deployments.requests import CHANGE_DEPLOYMENT, CREATE_DEPLOYMENT, DEPLOY_SPECULATOR
from control.serving.deployments.services import deployment_delete, deployment_start, deployment_stop
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.evaluations.requests import create_from as evaluation_create_from
from control.workflows.evaluations.schemas import EvaluationObject, EvaluationRequest
from control.workflows.evaluations.selectors import evaluations_list
from control.workflows.speculators.plots import training_plots
from control.workflows.speculators.requests import ARCHIVE_SPECULATOR, EXPORT_SPECULATOR, IMPORT_SPECULATOR
from control.workflows.speculators.services import speculator_delete


def _is_private(row: BaseModel) -> bool:
    return row.organization_id is not None


@admin.register(BaseModel)
class BaseModelAdmin(FormAdmin):
    scope = "models"
    staff_fields = ("path",)
    sidebar = SidebarEntry("Serving", 7, "Base models", "neurology")
    create_form = REGISTER_MODEL
    list_display = ["name", "id", "organization", "state", "model_type", "created_at"]
    search_fields = ["name", "id"]
    list_filter = ["status"]
    actions_detail = ["delete"]
    fields = [
        "id", "name", "organization", "state", "failure", "source", "model_type", "path", "revision", "perplexity",
        "created_at",
    ]  # fmt: skip

    def visible_to(self, organization: Organization) -> Q:
        return super().visible_to(organization) | Q(organization=None)

    @admin.display(description="status", ordering="status")
    def state(self, row: BaseModel) -> SafeString:
        return badge(row, row.status, active=row.status == BaseModel.Status.CHECKING)

    @admin.display(description="error")
    def failure(self, row: BaseModel) -> SafeString | str:
        return error_text(row.error)

    @service_action(
        "Delete",
        "A model that batches, speculators or deployments use cannot be deleted.",
        icon="delete",
        danger=True,
        when=_is_private,
    )
    def delete(self, row: BaseModel) -> str:
        if row.organization is None:
            raise ApiError(403, f"{row.name!r} is shared by all organizations.", "base_model_shared", "model_id")
        base_model_delete(base_model=row, organization=row.organization)
        return f"{row.name} is deleted."


def _is_ready(row: Speculator) -> bool:
    return row.status == Speculator.Status.READY


@admin.register(Speculator)
class SpeculatorAdmin(FormAdmin):
    scope = "speculators"
    sidebar = SidebarEntry("Serving", 4, "Speculators", "bolt")
    create_form = IMPORT_SPECULATOR
    list_display = ["__str__", "organization", "base_model", "kind", "state", "acceptance", "speedup", "created_at"]
    list_filter = ["status", "kind", "organization"]
    search_fields = ["name", "id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model"]
    actions = ["compare"]
    actions_detail = ["deploy", "evaluate", "export", "delete"]
    fields = [
        "id", "name", "version", "organization", "base_model", "kind", "state", "summary", "by_concurrency",
        "by_phase", "by_context", "plot",
        "evaluations", "training_result", "training_plots", "lineage", "target_revision", "created_at",
    ]  # fmt: skip

    def opening(self, request: HttpRequest, row: Speculator) -> SafeString:
        return speculator_opening(request, row, can_deploy=_is_ready(row) and self.has_deploy_permission(request))

    def has_deploy_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return bool(admin.site._registry[Deployment].has_add_permission(request))

    @admin.display
    def lineage(self, row: Speculator) -> SafeString:
        return lineage_link(row.pk)

    @admin.display(description="status", ordering="status")
    def state(self, row: Speculator) -> SafeString:
        return badge(row, row.status, active=row.status == Speculator.Status.TRAINING)

    @admin.display(description="acceptance length")
    def acceptance(self, row: Speculator) -> str:
        return number(row.report.get("acceptance_length"))

    @admin.display
    def speedup(self, row: Speculator) -> str:
        return number(row.report.get("speedup"))

    @admin.display(description="report")
    def summary(self, row: Speculator) -> SafeString:
        return pairs(row, "report", row.report)

    @admin.display(description="by concurrency")
    def by_concurrency(self, row: Speculator) -> SafeString:
        return _report_table(row, "concurrencies", first=("concurrency",))

    @admin.display(description="by phase")
    def by_phase(self, row: Speculator) -> SafeString:
        return _report_table(row, "by_phase", first=("phase",))

    @admin.display(description="by context")
    def by_context(self, row: Speculator) -> SafeString:
        return _report_table(row, "by_context", first=("context_from", "context_to"))

    @admin.display
    def plot(self, row: Speculator) -> SafeString | str:
        if not row.plot_key:
            return "–"
        url = reverse("speculator-plot", args=[row.pk])
        return format_html('<img class="console-plot" src="{}" alt="Acceptance and speed of {}">', url, row)

    @admin.display
    @read_once
    def evaluations(self, row: Speculator) -> SafeString:
        """The latest evaluations, newest first, each with its job."""
        latest = evaluations_list(row.organization).filter(speculator=row).order_by("-id")[:20]
        lines = [(link(run), link(run.job), run.job.status, EvaluationObject.of(run).result or "–") for run in latest]
        return table(row, "evaluations", ["evaluation", "job", "status", "outputs"], lines)

    @admin.display(description="training curves")
    @read_once
    def training_plots(self, row: Speculator) -> SafeString | str:
        url = reverse("speculator-plot", args=[row.pk])
        pictures = [(url, name, name.replace("_", " ")) for name in training_plots(row)]
        return format_html_join("", '<img class="console-plot" src="{}?name={}" alt="{}">', pictures) or "–"

    @admin.action(description="Compare side by side", permissions=["view"])
    def compare(self, request: HttpRequest, selected: QuerySet[Speculator]) -> HttpResponse:
        ids = ",".join(selected.values_list("pk", flat=True)[:MAX_SPECULATORS])
        return redirect(f"{reverse('speculators-compare')}?{urlencode({'ids': ids})}")

    @admin.display(description="training")
    def training_result(self, row: Speculator) -> SafeString:
        return pairs(row, "training", row.training)

    @service_action(
        "Evaluate",
        "Evaluates the speculator again, on the prompts that its pipeline held out.",
        icon="speed",
        when=_is_ready,
    )
    def evaluate(self, row: Speculator) -> str:
        evaluation = evaluation_create_from(row.organization, EvaluationRequest(speculator_id=row.pk))
        return format_html("{} is queued.", link(evaluation))

    deploy = form_action("deploy", DEPLOY_SPECULATOR, icon="rocket_launch", when=_is_ready, permission="deploy")
    export = form_action("export", EXPORT_SPECULATOR, icon="download", when=_is_ready)
    archive = form_action("archive", ARCHIVE_SPECULATOR, icon="inventory_2", when=_is_ready)

    @service_action(
        "Delete",
        "A speculator that a deployment, a job, a pipeline or a rollout uses cannot be deleted.",
        icon="delete",
        danger=True,
        when=_is_ready,
    )
    def delete(self, row: Speculator) -> str:
        speculator_delete(speculator=row)
        return f"{row} is deleted."


def _report_table(row: Speculator, name: str, *, first: tuple[str, ...]) -> SafeString:
    """Renders a list in the report as a table.

    `first` names the left columns, because PostgreSQL does not preserve the order of a JSON object's keys.
    """
    entries = row.report.get(name) or []
    columns = [key for key, value in entries[0].items() if not is_nested(value)] if entries else []
    columns = [*first, *(column for column in columns if column not in first)] if columns else []
    lines = [[number(entry.get(column)) for column in columns] for entry in entries]
    return table(row, name, [column.replace("_", " ") for column in columns], lines)


def is_not_deleted(row: Deployment) -> bool:
    return row.deleted_at is None


def should_run(row: Deployment) -> bool:
    return is_not_deleted(row) and row.desired_state == Deployment.Desired.RUNNING


def _is_startable(row: Deployment) -> bool:
    return is_not_deleted(row) and (not should_run(row) or row.state == Deployment.State.FAILED)


@admin.register(Deployment)
class DeploymentAdmin(FormAdmin):
    scope = "deployments"
    staff_fields = ("processes", "log")
    sidebar = SidebarEntry("Serving", 1, "Deployments", "rocket_launch")
    create_form = CREATE_DEPLOYMENT
    list_display = ["name", "organization", "base_model", "speculator", "condition", "desired_state", "healthy_at"]
    list_filter = ["state", "organization"]
    search_fields = ["name", "id"]
    ordering = ["-id"]
    list_select_related = ["organization", "base_model", "speculator"]
    actions_detail = ["start", "change_served", "stop", "delete"]
    fields = [
        "id", "name", "organization", "base", "the_speculator", "condition", "desired_state", "failure",
        "num_replicas", "scaling", "acceptance_alarm", "processes", "health", "device_time", "generation",
        "observed_generation", "healthy_at", "created_at", "deleted_at", "lineage", "log",
    ]  # fmt: skip

    def opening(self, request: HttpRequest, row: Deployment) -> SafeString:
        return deployment_opening(request, row)

    @admin.display
    def lineage(self, row: Deployment) -> SafeString:
        return lineage_link(row.canary_of_id or row.pk)

    @admin.display(description="state", ordering="state")
    def condition(self, row: Deployment) -> SafeString:
        return badge(row, row.state, active=row.state in REFRESHED_STATES)

    @admin.display(description="base model")
    def base(self, row: Deployment) -> SafeString | str:
        return link(row.base_model)

    @admin.display(description="speculator")
    def the_speculator(self, row: Deployment) -> SafeString | str:
        return link(row.speculator)

    @admin.display(description="error")
    def failure(self, row: Deployment) -> SafeString | str:
        return error_text(row.error)

    @admin.display(description="processes")
    @read_once
    def processes(self, row: Deployment) -> SafeString:
        columns = [
            "number", "state", "generation", "node", "device", "pid", "port", "crashes in 10 minutes",
            "error or reason to wait",
        ]  # fmt: skip
        lines = [
            (
                replica.number, replica.state, replica.generation, replica.node, replica.device, replica.pid,
                replica.port, len(replica.crashes), (replica.blocked or replica.error or {}).get("message", ""),
            )
            for replica in row.replicas.order_by("number")
        ]  # fmt: skip
        return table(row, "processes", columns, lines)

    @admin.display(description="device time")
    @read_once
    def device_time(self, row: Deployment) -> str:
        cost = DeploymentCost.of(row)
        month = f"{cost.cost_this_month.value:,.6g} this month"
        return f"{duration(cost.device_seconds)}: {cost.cost.value:,.6g} USD so far, {month}"

    @admin.display(description="history of states")
    @read_once
    def health(self, row: Deployment) -> SafeString:
        """Lists the changes of the state, newest first, as far back as events are stored."""
        events = Event.objects.filter(organization=row.organization_id, object_id=row.pk).order_by("-number")[:50]
        lines = [(event.created_at, event.type.removeprefix("deployment.")) for event in events]
        return table(row, "health", ["since", "state"], lines)

    @admin.display(description="end of the logs")
    def log(self, row: Deployment) -> SafeString:
        paths = {number: log_path(get_config(), row.pk, number) for number in range(row.num_replicas)}
        return format_html_join(
            "", "{}", ((log_tail(f"{row.pk}-{number}-log", path),) for number, path in paths.items())
        )

    @service_action("Start", "Starts the endpoint and forgets its crashes.", icon="play_arrow", when=_is_startable)
    def start(self, row: Deployment) -> str:
        return f"{row.name} is {deployment_start(deployment=row).state}."

    change_served = form_action("change_served", CHANGE_DEPLOYMENT, icon="swap_horiz", when=is_not_deleted)

    @service_action(
        "Stop",
        "The endpoint gets no new requests and finishes its current ones.",
        icon="stop",
        danger=True,
        when=should_run,
    )
    def stop(self, row: Deployment) -> str:
        return f"{row.name} is {deployment_stop(deployment=row).state}."

    @service_action("Delete", "Stops the endpoint and frees its name.", icon="delete", danger=True, when=is_not_deleted)
    def delete(self, row: Deployment) -> str:
        return f"{deployment_delete(deployment=row).name} is deleted."
