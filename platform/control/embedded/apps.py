from django.apps import AppConfig


class EmbeddedConfig(AppConfig):
    name = "control.embedded"
    label = "embedded"
    default_auto_field = "django.db.models.BigAutoField"
