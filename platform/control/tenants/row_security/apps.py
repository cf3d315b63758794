from django.apps import AppConfig, apps
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate


class RowSecurityConfig(AppConfig):
    name = "control.tenants.row_security"

    def ready(self) -> None:
        from control.tenants.row_security import checks as checks  # registers itself
        from control.tenants.row_security.policies import synchronise
        from control.tenants.row_security.scope import install

        connection_created.connect(install, dispatch_uid="slipstream.tenancy")
        # Django sends post_migrate only for apps with models, and this one has none.
        accounts = apps.get_app_config("accounts")
        post_migrate.connect(synchronise, sender=accounts, dispatch_uid="slipstream.tenancy")
