from django.apps import AppConfig


class FilesConfig(AppConfig):
    name = "control.files"
    label = "files"
    default_auto_field = "django.db.models.BigAutoField"
