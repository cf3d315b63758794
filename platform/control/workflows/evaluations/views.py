"""Routes of evaluations, and of the public key that verifies their certificates."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, PNG, SVG, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.core.certificates import public_key_body
from control.core.storage.backends import ObjectMissing
from control.data.files.streaming import StoredFileResponse
from control.models.engines.schemas import EnginePlan
from control.queue.jobs.models import Job
from control.tenants.authentication.views import OrganizationView
from control.workflows.evaluations.capacity import NotMeasuredError, capacity_plan
from control.workflows.evaluations.capacity_query import CAPACITY_QUERY, parse_load
from control.workflows.evaluations.requests import create_from, plan_from
from control.workflows.evaluations.schemas import (
    CapacityPlanObject,
    CertificateObject,
    EvaluationObject,
    EvaluationRequest,
    PublicKeyObject,
)
from control.workflows.evaluations.selectors import evaluation_get, evaluations_list
from control.workflows.evaluations.services import evaluation_cancel

_MEDIA_TYPES = {"png": PNG, "svg": SVG}


class EvaluationsView(OrganizationView):
    scope = "speculators"

    @operation(
        "evaluations.list",
        response=Page[EvaluationObject],
        query={**PAGING, "speculator_id": "Only evaluations of this speculator."},
    )
    def get(self, request: Request) -> Response:
        evaluations = evaluations_list(self.organization)
        if "speculator_id" in request.query_params:
            evaluations = evaluations.filter(speculator_id=request.query_params["speculator_id"])
        return paginate(evaluations, request, EvaluationObject.of)

    @operation("evaluations.create", request=EvaluationRequest, response=EvaluationObject, status=201, plan=EnginePlan)
    def post(self, request: Request, body: EvaluationRequest) -> EvaluationObject | EnginePlan:
        if body.validate_only:
            return plan_from(self.organization, body)
        evaluation = create_from(self.organization, body)
        return EvaluationObject.of(evaluation_get(self.organization, evaluation.pk))


class EvaluationView(OrganizationView):
    scope = "speculators"

    @operation("evaluations.retrieve", response=EvaluationObject)
    def get(self, request: Request, evaluation_id: str) -> EvaluationObject:
        return EvaluationObject.of(evaluation_get(self.organization, evaluation_id))


class EvaluationCancelView(OrganizationView):
    """A running evaluation ends within seconds after the response. An evaluation that has ended does not change."""

    scope = "speculators"

    @operation("evaluations.cancel", response=EvaluationObject, status=202)
    def post(self, request: Request, evaluation_id: str) -> EvaluationObject:
        evaluation_cancel(evaluation=evaluation_get(self.organization, evaluation_id))
        return EvaluationObject.of(evaluation_get(self.organization, evaluation_id))


class EvaluationCertificateView(OrganizationView):
    """The signed result. Anybody who has the public key can verify it without calling this service."""

    scope = "speculators"

    @operation(
        "evaluations.certificate",
        summary="Retrieve the signed certificate of an evaluation",
        response=CertificateObject,
    )
    def get(self, request: Request, evaluation_id: str) -> Response:
        evaluation = evaluation_get(self.organization, evaluation_id)
        if evaluation.certificate is None:
            message = f"Evaluation {evaluation.pk} has no certificate; its status is {evaluation.job.status!r}."
            raise ApiError(404, message, "certificate_not_found", "evaluation_id")
        return Response(evaluation.certificate)  # exactly as it was signed


class EvaluationPlotView(OrganizationView):
    scope = "speculators"

    @operation(
        "evaluations.plot",
        summary="Download the plot of an evaluation",
        response=PNG,
        also=SVG,
        query={"format": "`png` or `svg`."},
    )
    def get(self, request: Request, evaluation_id: str) -> StoredFileResponse:
        """The plot of acceptance by position and of speed by concurrency, as PNG or SVG."""
        evaluation = evaluation_get(self.organization, evaluation_id)
        kind = request.query_params.get("format", "png")
        if kind not in _MEDIA_TYPES:
            raise ApiError(400, f"format must be png or svg, got {kind[:20]!a}", "invalid_value", "format")
        try:
            if evaluation.plots_prefix:
                return StoredFileResponse(
                    f"{evaluation.plots_prefix}/report.{kind}",
                    filename=f"{evaluation.pk}.{kind}",
                    content_type=_MEDIA_TYPES[kind],
                )
        except ObjectMissing:
            pass  # answered like a plot that was never drawn
        raise ApiError(404, f"Evaluation {evaluation.pk} has no plot.", "plot_not_found", "evaluation_id")


class EvaluationCapacityView(OrganizationView):
    scope = "speculators"

    @operation(
        "evaluations.capacity",
        summary="Plan the devices for a rate of requests",
        response=CapacityPlanObject,
        query=CAPACITY_QUERY,
    )
    def get(self, request: Request, evaluation_id: str) -> CapacityPlanObject:
        """The devices and the cost of a month, with and without the speculator, computed from the evaluation's speeds.

        A concurrency or a kind of device that was not evaluated is refused.
        """
        evaluation, load = evaluation_get(self.organization, evaluation_id), parse_load(request.query_params)
        if evaluation.job.status != Job.Status.SUCCEEDED:
            message = f"Evaluation {evaluation.pk} has no report; its status is {evaluation.job.status!r}."
            raise ApiError(409, message, "evaluation_not_finished", "evaluation_id")
        try:
            plan = capacity_plan(evaluation.job.result, load, speculator=evaluation.speculator_id)
        except NotMeasuredError as error:
            raise ApiError(400, f"{error.param}: {error}", "not_measured", error.param) from None
        return CapacityPlanObject.of(evaluation.pk, plan)


class CertificateKeyView(OrganizationView):
    """The key that verifies certificates. It changes only when the installation's signing key is replaced."""

    scope = "speculators"

    @operation(
        "certificates.public_key", summary="Retrieve the key that verifies certificates", response=PublicKeyObject
    )
    def get(self, request: Request) -> PublicKeyObject:
        return PublicKeyObject(**public_key_body())
