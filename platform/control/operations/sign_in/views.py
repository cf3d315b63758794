"""The page of an invitation, and the choice of the organization for people who are members of several."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import SetPasswordForm
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from control.operations.console.visitors import ORGANIZATION_KEY
from control.tenants.accounts.models import User
from control.tenants.accounts.people import memberships
from control.tenants.administration.invitations import InvitationVoid, invitation_accept, invited_member


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Lets an invited person choose a password, once."""
    try:
        member = invited_member(token)
        form: SetPasswordForm[User] = SetPasswordForm(member.user, request.POST or None)
        if form.is_valid():
            invitation_accept(token=token, password=form.cleaned_data["new_password1"])
            messages.success(request, "Your password is set. Sign in with it now.")
            return redirect("account_login")
    except InvitationVoid:
        return render(request, "sign_in/invitation_void.html", status=410)
    return render(request, "sign_in/invitation.html", {"form": form, "member": member})


@require_POST
@login_required
def organization(request: HttpRequest) -> HttpResponse:
    """Chooses the organization whose pages are shown from now on. The user must be a member of the organization."""
    chosen = request.POST.get("organization", "")
    if chosen not in {member.organization_id for member in memberships(request.user)}:
        raise Http404
    request.session[ORGANIZATION_KEY] = chosen
    return redirect("admin:index")
