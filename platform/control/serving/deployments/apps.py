import logging

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "control.serving.deployments"

    def ready(self) -> None:
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every health check drowns all others
