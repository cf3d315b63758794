"""Django imports this module to find the console's pages. Each of the modules imported here registers its pages."""

from control.operations.console import (
    access,
    adapters,
    captures,
    datasets,
    distillations,
    evaluations,
    jobs,
    money,
    organizations,
    rollouts,
    serving,
    webhooks,
    work,
)

__all__ = [
    "access",
    "adapters",
    "captures",
    "datasets",
    "distillations",
    "evaluations",
    "jobs",
    "money",
    "organizations",
    "rollouts",
    "serving",
    "webhooks",
    "work",
]
