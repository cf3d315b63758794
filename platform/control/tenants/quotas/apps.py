from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "control.tenants.quotas"
    label = "tenancy"  # the table is named after it
