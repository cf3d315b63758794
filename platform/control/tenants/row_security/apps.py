from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class TenancyConfig(AppConfig):
    name = "control.tenants.row_security"

    def ready(self) -> None:
        from control.tenants.row_security import checks as checks  # registers itself
        from control.tenants.row_security.policies import synchronise
        from control.tenants.row_security.scope import install

        connection_created.connect(install, dispatch_uid="slipstream.tenancy")
        post_migrate.connect(synchronise, sender=self, dispatch_uid="slipstream.tenancy")
