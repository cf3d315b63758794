"""Sign-in with codes of an authenticator app as a second factor, if STAFF_TWO_FACTOR is set."""

from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest
from django_otp.admin import OTPAdminAuthenticationForm
from django_otp.plugins.otp_totp.models import TOTPDevice
from unfold.forms import AuthenticationForm

from control.operations.console.site import ConsoleSite
from control.tenants.accounts.models import User


class TwoFactorForm(OTPAdminAuthenticationForm, AuthenticationForm):  # type: ignore[misc]  # neither has types
    """Unfold's sign-in form with a field for the code."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        code = self.fields["otp_token"]
        code.label = "Code of your authenticator app"
        code.widget.attrs = {
            "autocomplete": "one-time-code",
            "inputmode": "numeric",
            "class": self.fields["username"].widget.attrs["class"],
        }

    def _chosen_device(self, user: User) -> TOTPDevice:
        """Overrides django-otp's method, which reads the device from the form: our users have only one device."""
        device = TOTPDevice.objects.filter(user=user).first()
        if device is None:
            raise ValidationError("You have no second factor yet. `manage.py two_factor_enrol` creates one.")
        return device


class TwoFactorSite(ConsoleSite):
    def admits_staff(self, request: HttpRequest) -> bool:
        """Admits staff who signed in with a code. A user who signed in without one has no permission."""
        return bool(super().admits_staff(request) and request.user.is_verified())  # type: ignore[union-attr]  # otp's


def require_two_factor(site: AdminSite) -> None:
    site.__class__ = TwoFactorSite
    site.login_form = TwoFactorForm
    site.unregister(TOTPDevice)  # its pages would show the users' secrets


@transaction.atomic
def second_factor_renew(*, user: User) -> str:
    """Replaces the user's secrets by a new one. Returns its `otpauth://` URL, which authenticator apps read."""
    TOTPDevice.objects.filter(user=user).delete()
    url: str = TOTPDevice.objects.create(user=user, name="authenticator app").config_url
    return url
