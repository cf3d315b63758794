"""Where Django looks for the console's pages; each module registers its own."""

from control.console import access, serving, work

__all__ = ["access", "serving", "work"]
