from django.apps import AppConfig
from django.conf import settings
from django.contrib.admin import AdminSite


def _unregister_library_pages(site: AdminSite) -> None:
    """Removes the pages that allauth registers: they would show secrets and change rows without our services."""
    for model in list(site._registry):
        if model.__module__.startswith("allauth."):
            site.unregister(model)


class ConsoleConfig(AppConfig):
    name = "control.operations.console"

    def ready(self) -> None:
        from django.contrib import admin  # imported late: unfold replaces the site when its own app is ready

        from control.operations.console.site import ConsoleSite

        admin.site.__class__ = ConsoleSite  # keeps the object, with which Django has already registered pages
        admin.site.login_template = "console/login.html"
        _unregister_library_pages(admin.site)
        admin.site.index_template = "console/index.html"
        admin.site.index_title = "Overview"
        if settings.STAFF_TWO_FACTOR:
            # imported here, because the app with the model is installed only with this setting
            from control.operations.console.two_factor import require_two_factor

            require_two_factor(admin.site)
