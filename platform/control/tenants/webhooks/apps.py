from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "control.tenants.webhooks"

    def ready(self) -> None:
        from control.tenants.webhooks import checks  # noqa: F401  # registers itself
