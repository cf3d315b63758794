"""Settings that require a second factor from staff users and lock their accounts after wrong passwords."""

from datetime import timedelta

from control.core.settings.base import INSTALLED_APPS as _APPS
from control.core.settings.base import MIDDLEWARE as _MIDDLEWARE
from control.core.settings.sign_in import AUTHENTICATION_BACKENDS as _BACKENDS

STAFF_TWO_FACTOR = True
INSTALLED_APPS = [*_APPS, "django_otp", "django_otp.plugins.otp_totp", "axes"]
MIDDLEWARE = [*_MIDDLEWARE, "django_otp.middleware.OTPMiddleware", "axes.middleware.AxesMiddleware"]
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", *_BACKENDS]

OTP_TOTP_ISSUER = "Slipstream"
AXES_VERBOSE = False  # no log line at every start
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]  # locks the pair: behind a proxy, users may share an address
AXES_ENABLE_ADMIN = False  # `manage.py axes_reset_username NAME` unlocks
