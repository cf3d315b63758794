"""Where Django looks for the console's pages; each module registers its own."""

from control.console import access, jobs, serving, work

__all__ = ["access", "jobs", "serving", "work"]
