from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "control.webhooks"

    def ready(self) -> None:
        from control.webhooks import checks  # noqa: F401  # registers itself
