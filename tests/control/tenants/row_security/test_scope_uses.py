"""Only the modules in `ALLOWED` may see rows of all organizations, each for the reason listed there."""

import ast
from collections.abc import Iterator

from tests.source_tree import source_files

ALLOWED = {
    ("control.tenants.authentication.api_keys", "AUTHENTICATION"),
    ("control.tenants.accounts.people", "AUTHENTICATION"),
    ("control.tenants.administration.invitations", "AUTHENTICATION"),
    ("control.billing.usage.migrations.0003_fill_monthly_spend", "COMMAND"),
    ("control.tenants.accounts.management.commands.project_assign", "COMMAND"),
    ("control.workflows.pipelines.migrations.0006_fill_projects", "COMMAND"),
    ("control.serving.captures.management.commands.capture_keys_reencrypt", "COMMAND"),
    ("control.serving.captures.migrations.0005_seal_stored_requests", "COMMAND"),
    ("control.serving.deployments.management.commands.supervise_deployments", "SUPERVISION"),
    ("control.models.catalog.management.commands.price_set", "COMMAND"),
    ("control.operations.embedded.management.commands.base_model_register", "COMMAND"),
    ("control.operations.embedded.management.commands.base_speculator_publish", "COMMAND"),
    ("control.operations.embedded.management.commands.base_speculator_withdraw", "COMMAND"),
    ("control.operations.embedded.management.commands.up", "COMMAND"),
    ("control.queue.devices.selectors", "HARDWARE"),
    ("control.queue.jobs.fair", "CLAIM"),
    ("control.queue.jobs.positions", "QUEUE"),
    ("control.queue.jobs.services", "CLAIM"),
    ("control.operations.monitoring.queue_metrics", "CONSOLE"),
    ("control.operations.monitoring.engines", "CONSOLE"),
    ("control.serving.deployments.migrations.0012_keep_processes", "COMMAND"),
    ("control.tenants.audit.exporting", "COMMAND"),
    ("control.tenants.audit.management.commands.audit_export", "COMMAND"),
    ("control.tenants.row_security.middleware", "CONSOLE"),
    ("control.tenants.webhooks.management.commands.webhook_secrets_reencrypt", "COMMAND"),
    ("workers.supervisor.webhook_sender", "HOUSEKEEPING"),
    ("workers.supervisor.worker", "HOUSEKEEPING"),
}


def uses_of_across() -> Iterator[tuple[str, str]]:
    """Yields the module and the reason, a member of `Across`, of each use outside of tests and benchmarks."""
    for file in source_files():
        if file.is_test or file.module.startswith("benchmarks."):
            continue
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Across":
                yield file.module, node.attr


def test_only_listed_modules_work_across_tenants() -> None:
    assert set(uses_of_across()) == ALLOWED
