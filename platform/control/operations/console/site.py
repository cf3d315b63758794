"""The console's site, which admits staff and members of organizations."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth import logout
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from unfold.sites import UnfoldAdminSite

from control.operations.console.visitors import enter_organization, lacks_second_factor, member_of


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Callable[..., Any]:
        """Wraps every page.

        Ends the session of a user who has been removed from all organizations. Sends a member without the second factor
        that the organization requires to the page that sets it up.
        """
        guarded = super().admin_view(view, cacheable)

        @wraps(view)
        def run(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            member = member_of(request)
            if member is None and request.user.is_authenticated and not request.user.is_staff:
                logout(request)
                return redirect("account_login")
            if member is not None and lacks_second_factor(request, member):
                messages.info(request, f"{member.organization.name} requires a second factor.")
                return redirect("mfa_activate_totp")
            response: HttpResponseBase = guarded(request, *args, **kwargs)
            return response

        return run

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Redirects members to their own sign-in page, which differs from the sign-in page of staff."""
        is_member = member_of(request) is not None
        response: HttpResponseBase = super().logout(request, extra_context)
        return redirect("account_login") if is_member else response

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        if member_of(request) is not None:
            return redirect("account_change_password")
        response: HttpResponseBase = super().password_change(request, extra_context)
        return response

    def has_permission(self, request: HttpRequest) -> bool:
        """Returns whether the user may use the console, and limits a member's request to the member's organization.

        Django calls this method before it runs the view of a page.
        """
        if member_of(request) is None:
            return self.admits_staff(request)
        enter_organization(request)
        return True

    def admits_staff(self, request: HttpRequest) -> bool:
        return bool(super().has_permission(request))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().each_context(request)
        member = member_of(request)
        return context if member is None else {**context, "site_subheader": member.organization.name}


def redirect_to_row(request: HttpRequest, content_type_id: str, object_id: str) -> HttpResponseBase:
    """Replaces Django's redirect to a row's public page, because this project's rows have no public pages."""
    raise Http404
