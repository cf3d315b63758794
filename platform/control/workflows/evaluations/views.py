"""/v1/evaluations: how a speculator does on held-out prompts; /v1/certificates: the key that signs what was found."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.core.storage.backends import ObjectMissing
from control.data.files.models import File
from control.data.files.selectors import file_get
from control.data.files.streaming import StoredFileResponse
from control.models.catalog.selectors import speculator_get
from control.tenants.authentication.views import OrganizationView
from control.workflows.evaluations.certificates import public_key_body
from control.workflows.evaluations.requests import parse_evaluation_request
from control.workflows.evaluations.selectors import evaluation_get, evaluations_list
from control.workflows.evaluations.serializers import evaluation_body
from control.workflows.evaluations.services import evaluation_cancel, evaluation_create

_DRAWINGS = {"png": "image/png", "svg": "image/svg+xml"}


class EvaluationsView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request) -> Response:
        found = evaluations_list(self.organization)
        if "speculator_id" in request.query_params:
            found = found.filter(speculator_id=request.query_params["speculator_id"])
        return paginate(found, request, evaluation_body)

    def post(self, request: Request) -> Response:
        asked = parse_evaluation_request(request.data)
        speculator = speculator_get(self.organization, asked.speculator_id)
        prompts = None if asked.prompts_file is None else self._prompts(asked.prompts_file)
        evaluation = evaluation_create(
            organization=self.organization, speculator=speculator, prompts=prompts, request=asked
        )
        return Response(evaluation_body(evaluation_get(self.organization, evaluation.pk)), status=201)

    def _prompts(self, file_id: str) -> File:
        file = file_get(self.organization, file_id, param="prompts_file")
        if file.purpose != File.Purpose.BATCH:
            message = f"prompts_file must name a file with purpose 'batch', got one with purpose {file.purpose!r}"
            raise ApiError(400, message, "invalid_value", "prompts_file")
        return file


class EvaluationView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request, evaluation_id: str) -> Response:
        return Response(evaluation_body(evaluation_get(self.organization, evaluation_id)))


class EvaluationCancelView(OrganizationView):
    """202: it ends within seconds; one that has ended already stays as it is."""

    scope = "speculators"

    def post(self, request: Request, evaluation_id: str) -> Response:
        evaluation_cancel(evaluation=evaluation_get(self.organization, evaluation_id))
        return Response(evaluation_body(evaluation_get(self.organization, evaluation_id)), status=202)


class EvaluationCertificateView(OrganizationView):
    """What was found, signed: anybody with the public key can check it, without us."""

    scope = "speculators"

    def get(self, request: Request, evaluation_id: str) -> Response:
        evaluation = evaluation_get(self.organization, evaluation_id)
        if evaluation.certificate is None:
            message = f"Evaluation {evaluation.pk} has no certificate; its status is {evaluation.job.status!r}."
            raise ApiError(404, message, "certificate_not_found", "evaluation_id")
        return Response(evaluation.certificate)


class EvaluationPlotView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request, evaluation_id: str) -> StoredFileResponse:
        """Acceptance by position and speed by concurrency, as `format` says: png or svg."""
        evaluation = evaluation_get(self.organization, evaluation_id)
        kind = request.query_params.get("format", "png")
        if kind not in _DRAWINGS:
            raise ApiError(400, f"format must be png or svg, got {kind[:20]!a}", "invalid_value", "format")
        try:
            if evaluation.plots_prefix:
                return StoredFileResponse(
                    f"{evaluation.plots_prefix}/report.{kind}",
                    filename=f"{evaluation.pk}.{kind}",
                    content_type=_DRAWINGS[kind],
                )
        except ObjectMissing:
            pass  # as good as never drawn
        raise ApiError(404, f"Evaluation {evaluation.pk} has no plot.", "plot_not_found", "evaluation_id")


class CertificateKeyView(OrganizationView):
    """Keep it where certificates are checked. It changes only when the installation's key does."""

    scope = "speculators"

    def get(self, request: Request) -> Response:
        return Response(public_key_body())
