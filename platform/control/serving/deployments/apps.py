import logging

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "control.serving.deployments"

    def ready(self) -> None:
        from control.serving.deployments.selectors import deployments_check
        from control.tenants.administration.signals import key_restricting

        key_restricting.connect(deployments_check, dispatch_uid="slipstream.deployments")
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # otherwise httpx2 logs a line for every health check
