from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "control.tenants.quotas"
    label = "tenancy"  # part of the table's name
