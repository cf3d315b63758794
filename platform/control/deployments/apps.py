import logging

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "control.deployments"
    label = "deployments"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every health check drowns all others
