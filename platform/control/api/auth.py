"""What routes build on: the base of rest_framework's views."""

from django.http import Http404
from rest_framework.request import Request
from rest_framework.views import APIView

from control.accounts.models import ApiKey, Organization


class OrganizationView(APIView):
    """By the time a method runs, the caller's key has been checked; `self.organization` is its organization."""

    organization: Organization

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        assert isinstance(request.auth, ApiKey)  # HasApiKey has refused everything else
        self.organization = request.auth.organization
        if any("\0" in str(value) for value in (*kwargs.values(), *request.query_params.values())):
            raise Http404  # names nothing; PostgreSQL would refuse even to look for it
