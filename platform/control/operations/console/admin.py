"""Where Django looks for the console's pages; each module registers its own."""

from control.operations.console import access, findings, jobs, money, organizations, serving, trials, webhooks, work

__all__ = ["access", "findings", "jobs", "money", "organizations", "serving", "trials", "webhooks", "work"]
