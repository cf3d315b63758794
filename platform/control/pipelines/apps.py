from django.apps import AppConfig


class PipelinesConfig(AppConfig):
    name = "control.pipelines"
    label = "pipelines"
    default_auto_field = "django.db.models.BigAutoField"
