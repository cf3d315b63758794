"""The base class of the API's views."""

from typing import Any, ClassVar, Literal

from django.http import Http404
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from control.core.api.errors import ApiError
from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.accounts.scopes import ADMIN
from control.tenants.authentication.api_keys import require_scope
from control.tenants.authentication.caller import Caller, set_caller
from control.tenants.idempotency.once import once


class OrganizationView(APIView):
    """A view for the organization of the caller's API key, which is authenticated and authorized before a method runs.

    Every `post` supports `Idempotency-Key`; a request with this header runs in a transaction.
    """

    scope: ClassVar[str] = ADMIN  # one of `accounts.scopes`; a test requires that every view sets it
    project_keys: ClassVar[Literal["may call", "may read", "are refused"]] = "may call"
    organization: Organization
    key: ApiKey
    not_replayed: tuple[str, ...] = ()  # secret members of a POST's response, which are sent once and never stored

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "post" in cls.__dict__:
            cls.post = once(cls.__dict__["post"])  # type: ignore[attr-defined]  # applies to every subclass

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        assert isinstance(request.auth, ApiKey)  # HasApiKey has refused everything else
        self.key, self.organization = request.auth, request.auth.organization
        require_scope(self.key, self.scope, str(request.method))
        self._refuse_project_key(str(request.method))
        set_caller(Caller.of(self.key))
        if any("\0" in str(value) for value in (*kwargs.values(), *request.query_params.values())):
            raise Http404  # no object has such an id, and PostgreSQL refuses queries with zero bytes

    def _refuse_project_key(self, method: str) -> None:
        """Raises: ApiError: 403, the key belongs to a project, and `project_keys` does not allow this method."""
        is_allowed = self.project_keys == "may call" or (self.project_keys == "may read" and method in SAFE_METHODS)
        if self.key.project_id is not None and not is_allowed:
            message = "This key belongs to a project. Only a key of the whole organization may do this."
            raise ApiError(403, message, "organization_key_required")

    def request_body(self, request: Request) -> Any:
        """Returns the body that `operation` validates with its request model."""
        return request.data

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        set_caller(None)
        return super().finalize_response(request, response, *args, **kwargs)
