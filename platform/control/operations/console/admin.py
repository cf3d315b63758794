"""Django imports this module to find the console's pages; each imported module registers its own."""

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
