from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "control.console"

    def ready(self) -> None:
        from django.contrib import admin  # the site is unfold's once unfold is ready, which comes before

        admin.site.index_template = "console/index.html"
        admin.site.index_title = "Overview"
