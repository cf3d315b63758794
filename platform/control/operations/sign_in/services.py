"""Services of second factors, which operators call from the command line."""

from allauth.mfa.models import Authenticator
from django.db import transaction

from control.operations.sign_in.adapters import TOTP_SECRETS
from control.tenants.accounts.models import User


def second_factor_remove(*, user: User) -> bool:
    """Removes the authenticator app and the recovery codes. Returns: whether the user had any."""
    num_removed: int = Authenticator.objects.filter(user=user).delete()[0]
    return num_removed > 0


@transaction.atomic
def second_factors_reencrypt() -> int:
    """Encrypts the secrets of apps and recovery codes with the current SECRET_KEY. Returns the number of secrets.

    Raises: cryptography.fernet.InvalidToken: a secret was encrypted with a SECRET_KEY that is not known.
    """
    num_secrets = 0
    for factor in Authenticator.objects.select_for_update():
        for name in ("secret", "seed"):  # secret of an authenticator app, seed of recovery codes
            if name in factor.data:
                factor.data[name] = TOTP_SECRETS.reencrypt(factor.data[name])
                num_secrets += 1
        factor.save(update_fields=["data"])
    return num_secrets
