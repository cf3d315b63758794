"""Forms of the sign-in pages."""

from typing import Any

from allauth.account.forms import LoginForm
from allauth.account.forms import ResetPasswordForm as AllauthResetPasswordForm

from control.tenants.accounts.models import User
from control.tenants.accounts.people import is_member


class SignInForm(LoginForm):  # type: ignore[misc]  # allauth has no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "E-mail address"
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)


class ResetPasswordForm(AllauthResetPasswordForm):  # type: ignore[misc]  # allauth has no types
    def clean_email(self) -> str:
        """Only members get a mail. The response is the same for every address."""
        email: str = self.cleaned_data["email"].lower()
        found = User.objects.filter(username=email, is_active=True)
        self.users = [user for user in found if is_member(user)]
        return email
