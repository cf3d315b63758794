"""What routes build on: the base of rest_framework's views."""

from typing import Any, ClassVar

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.accounts.scopes import ADMIN
from control.tenants.authentication.api_keys import require_scope
from control.tenants.authentication.caller import Caller, set_caller
from control.tenants.idempotency.once import once


class OrganizationView(APIView):
    """By the time a method runs, the caller's key and its scope have been checked.

    `self.organization` is the organization of `self.key`.

    Every `post` honours `Idempotency-Key`, and may run in a transaction because of it.
    """

    scope: ClassVar[str] = ADMIN  # one of `accounts.scopes`; every view names its own, and a test holds it to that
    organization: Organization
    key: ApiKey
    not_replayed: tuple[str, ...] = ()  # members of a POST's answer that are shown once and never stored: secrets

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "post" in cls.__dict__:
            cls.post = once(cls.__dict__["post"])  # type: ignore[attr-defined]  # here, so that no view can forget it

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        assert isinstance(request.auth, ApiKey)  # HasApiKey has refused everything else
        self.key, self.organization = request.auth, request.auth.organization
        require_scope(self.key, self.scope, str(request.method))
        set_caller(Caller.of(self.key))
        if any("\0" in str(value) for value in (*kwargs.values(), *request.query_params.values())):
            raise Http404  # names nothing; PostgreSQL would refuse even to look for it

    def request_body(self, request: Request) -> Any:
        """What `operation` checks against its request model."""
        return request.data

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        set_caller(None)
        return super().finalize_response(request, response, *args, **kwargs)
