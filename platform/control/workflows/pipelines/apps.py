from django.apps import AppConfig


class PipelinesConfig(AppConfig):
    name = "control.workflows.pipelines"

    def ready(self) -> None:
        from control.serving.deployments.signals import deployment_settled
        from control.workflows.pipelines.stages import pipelines_of_deployment_advance

        deployment_settled.connect(pipelines_of_deployment_advance, dispatch_uid="slipstream.pipelines")
