"""`manage.py check --deploy` refuses a setting that is meant for tests and unsafe in production."""

from collections.abc import Sequence

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register

from control.core.settings.config import get_config


@register(Tags.security, deploy=True)
def private_targets_are_refused(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    if not get_config().webhooks_allow_private:
        return []
    hint = "Unset SLIPSTREAM_WEBHOOKS_ALLOW_PRIVATE."
    return [Error("Customers' webhooks may reach this network's own machines.", hint=hint, id="webhooks.E001")]
