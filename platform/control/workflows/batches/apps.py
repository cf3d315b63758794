from django.apps import AppConfig


class BatchesConfig(AppConfig):
    name = "control.workflows.batches"

    def ready(self) -> None:
        from control.billing.spending.signals import spend_cap_lifted
        from control.workflows.batches.caps import batches_resume

        spend_cap_lifted.connect(batches_resume, dispatch_uid="slipstream.batches")
