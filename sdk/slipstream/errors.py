"""The client's exceptions.

SlipstreamError
├── APIError                     communication with the service failed
│   ├── APIConnectionError       no response
│   │   └── APITimeoutError
│   ├── APIResponseError         the response does not have the documented form
│   ├── APIStreamError           the service aborted a streamed answer: message, code
│   └── APIStatusError           an error response: message, type, param, code, request_id
│       ├── BadRequestError 400 · AuthenticationError 401 · PermissionDeniedError 403 · NotFoundError 404
│       └── ConflictError 409 · UnprocessableEntityError 422 · RateLimitError 429 · InternalServerError >= 500
├── BatchFailed                  the batch failed, expired or was cancelled, or all of its rows failed
├── PipelineFailed               the pipeline failed, was cancelled, or was rejected by its gate
├── EvaluationFailed             the evaluation failed or was cancelled
├── CertificateError             the certificate is forged, was modified, or has the wrong form
├── UploadError                  the file is not the one for which the upload was created
├── WebhookError                 the delivery's signature is wrong or too old
└── WaitTimeout                  `timeout_seconds` of a `wait` have passed; the work continues
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # types.py imports this module
    from slipstream.types import Batch, Evaluation, Pipeline


class SlipstreamError(Exception):
    pass


class APIError(SlipstreamError):
    pass


class APIConnectionError(APIError):
    pass


class APITimeoutError(APIConnectionError):
    pass


class APIResponseError(APIError):
    pass


class APIStreamError(APIError):
    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.message = message
        self.code = code


class APIStatusError(APIError):
    """`code` is stable and meant for programs; the message is meant for people."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,  # noqa: A002  # the field's name in the response
        param: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        suffix = f" (request {request_id})" if request_id else ""
        super().__init__(f"{status}: {message}{suffix}")
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.request_id = request_id


class BadRequestError(APIStatusError):
    pass


class AuthenticationError(APIStatusError):
    pass


class PermissionDeniedError(APIStatusError):
    pass


class NotFoundError(APIStatusError):
    pass


class ConflictError(APIStatusError):
    pass


class UnprocessableEntityError(APIStatusError):
    pass


class RateLimitError(APIStatusError):
    pass


class InternalServerError(APIStatusError):
    pass


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(status: int, body: object, request_id: str | None) -> APIStatusError:
    """Returns the exception for an error response. `body`: the parsed JSON, which may have any form."""
    error = body.get("error") if isinstance(body, dict) else None
    fields = error if isinstance(error, dict) else {}
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(
        str(fields.get("message") or "the response gives no reason"),
        status=status,
        type=fields.get("type"),
        param=fields.get("param"),
        code=fields.get("code"),
        request_id=request_id,
    )


def stream_error(error: Mapping[str, Any]) -> APIStreamError:
    return APIStreamError(str(error.get("message") or "the service aborted the answer"), error.get("code"))


class BatchFailed(SlipstreamError):
    """The batch was not completed, or all of its rows failed.

    The details are in `batch.errors`, which lists errors of the input file, or in the file `batch.error_file_id`.
    """

    def __init__(self, batch: "Batch") -> None:
        if batch.status == "completed":
            reason = f"all {batch.num_failed} rows failed; see its error file {batch.error_file_id}"
        else:
            reason = "; ".join(str(error) for error in batch.errors[:5]) or "the service reported no error"
        super().__init__(f"batch {batch.id} is {batch.status}: {reason}")
        self.batch = batch


class PipelineFailed(SlipstreamError):
    """The pipeline failed, was cancelled, or was rejected by its gate; `pipeline` has the details."""

    def __init__(self, pipeline: "Pipeline") -> None:
        stage = next((stage.name for stage in pipeline.stages if stage.status == "failed"), None)
        where = f" in stage {stage}" if stage else ""
        reason = f": {pipeline.error_message} [{pipeline.error_code}]" if pipeline.error_message else ""
        super().__init__(f"pipeline {pipeline.name} is {pipeline.status}{where}{reason}")
        self.pipeline = pipeline


class EvaluationFailed(SlipstreamError):
    """The evaluation failed or was cancelled; `evaluation` has the details."""

    def __init__(self, evaluation: "Evaluation") -> None:
        reason = f": {evaluation.error_message} [{evaluation.error_code}]" if evaluation.error_message else ""
        super().__init__(f"evaluation {evaluation.id} is {evaluation.status}{reason}")
        self.evaluation = evaluation


class CertificateError(SlipstreamError):
    pass


class UploadError(SlipstreamError):
    pass


class WebhookError(SlipstreamError):
    pass


class WaitTimeout(SlipstreamError, TimeoutError):
    pass
