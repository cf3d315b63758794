"""Pages below /account/. Of allauth's pages, only those that members need are reachable."""

from allauth.account import views as account
from allauth.socialaccount import views as provider
from django.urls import include, path, re_path

from control.operations.sign_in import views

urlpatterns = [
    path("invitation/<str:token>", views.invitation, name="invitation"),
    path("organization", views.organization, name="choose-organization"),
    path("login/", account.login, name="account_login"),
    path("logout/", account.logout, name="account_logout"),
    path("inactive/", account.account_inactive, name="account_inactive"),
    path("signup/", account.signup, name="account_signup"),  # always closed; allauth's pages need the name
    path("reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("password/change/", account.password_change, name="account_change_password"),
    path("password/set/", account.password_set, name="account_set_password"),
    path("password/reset/", account.password_reset, name="account_reset_password"),
    path("password/reset/done/", account.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path(
        "password/reset/key/done/",
        account.password_reset_from_key_done,
        name="account_reset_password_from_key_done",
    ),
    path("2fa/", include("allauth.mfa.urls")),
    path("provider/cancelled/", provider.login_cancelled, name="socialaccount_login_cancelled"),
    path("provider/error/", provider.login_error, name="socialaccount_login_error"),
    path("provider/signup/", provider.signup, name="socialaccount_signup"),
    path("provider/", include("allauth.socialaccount.providers.openid_connect.urls")),
]
