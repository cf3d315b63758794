from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "control.console"
    label = "console"
    default_auto_field = "django.db.models.BigAutoField"
