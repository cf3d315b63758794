"""The setting UNFOLD: the look of the console and the entries of its sidebar."""

from typing import Any

from django.urls import reverse_lazy


def _link(title: str, icon: str, model: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{model}_changelist")}


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Slipstream",
    "SITE_HEADER": "Slipstream",
    "SITE_SUBHEADER": "Operator console",
    "SITE_SYMBOL": "air",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/console/favicon.svg"}],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "BORDER_RADIUS": "6px",
    "DASHBOARD_CALLBACK": "control.operations.console.dashboard.dashboard",
    "STYLES": ["/static/console/console.css"],
    "SCRIPTS": ["/static/console/live.js"],
    "SIDEBAR": {
        "show_search": True,
        "navigation": [
            {"items": [{"title": "Overview", "icon": "space_dashboard", "link": reverse_lazy("admin:index")}]},
            {
                "title": "Work",
                "separator": True,
                "items": [
                    _link("Pipelines", "conversion_path", "pipelines_pipeline"),
                    _link("Batches", "stacks", "batches_batch"),
                    _link("Distillations", "water_drop", "distillations_distillation"),
                    _link("Jobs", "pending_actions", "jobs_job"),
                    {"title": "Queue and workers", "icon": "groups", "link": reverse_lazy("queue")},
                    _link("Files", "description", "files_file"),
                    _link("Datasets", "fact_check", "datasets_dataset"),
                ],
            },
            {
                "title": "Serving",
                "separator": True,
                "items": [
                    _link("Deployments", "rocket_launch", "deployments_deployment"),
                    _link("Rollouts", "science", "rollouts_rollout"),
                    _link("Captures", "save", "captures_capture"),
                    _link("Speculators", "bolt", "catalog_speculator"),
                    _link("Evaluations", "speed", "evaluations_evaluation"),
                    _link("Adapters", "extension", "adapters_adapter"),
                    _link("Base models", "neurology", "catalog_basemodel"),
                ],
            },
            {
                "title": "Tenants",
                "separator": True,
                "items": [
                    _link("Organizations", "domain", "accounts_organization"),
                    _link("Projects", "folder", "accounts_project"),
                    _link("Limits", "production_quantity_limits", "tenancy_limits"),
                    _link("Spend caps", "savings", "spending_spendcap"),
                    _link("Quotes", "request_quote", "quotes_quote"),
                    _link("Webhooks", "webhook", "webhooks_webhookendpoint"),
                    _link("Deliveries", "outbox", "webhooks_webhookdelivery"),
                    _link("Audit", "history", "audit_auditevent"),
                ],
            },
            {
                "title": "Access",
                "separator": True,
                "items": [
                    _link("Members", "group", "accounts_member"),
                    _link("API keys", "key", "accounts_apikey"),
                    _link("Users", "person", "accounts_user"),
                ],
            },
        ],
    },
}
