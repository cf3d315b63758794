from django.apps import AppConfig
from django.conf import settings


class ConsoleConfig(AppConfig):
    name = "control.operations.console"

    def ready(self) -> None:
        from django.contrib import admin  # imported late: unfold replaces the site when its own app is ready

        admin.site.index_template = "console/index.html"
        admin.site.index_title = "Overview"
        if settings.STAFF_TWO_FACTOR:
            from control.operations.console.two_factor import require_two_factor  # its app is not installed otherwise

            require_two_factor(admin.site)
