"""Scopes of API keys. Every view names its resource; the HTTP method decides between `read` and `write`.

files:read     one action on one resource
files:*        both actions
inference      requests to deployed models; not a resource, so it has no actions
admin          keys, members and projects
*              everything
"""

from collections.abc import Iterable, Mapping

RESOURCES: Mapping[str, str] = {
    "files": "files and uploads",
    "datasets": "datasets",
    "batches": "batches",
    "jobs": "jobs and their events",
    "models": "base models and adapters",
    "fine_tuning": "fine-tuning jobs",
    "pipelines": "pipelines, distillations and quotes",
    "speculators": "speculators and evaluations",
    "deployments": "deployments",
    "usage": "usage and costs",
    "events": "events",
    "webhooks": "webhook endpoints",
}
INFERENCE, ADMIN, EVERYTHING = "inference", "admin", "*"
SCOPES = (
    EVERYTHING,
    ADMIN,
    INFERENCE,
    *(f"{resource}:{action}" for resource in RESOURCES for action in ("read", "write", "*")),
)
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


def full_access() -> list[str]:
    return [EVERYTHING]


def scope_needed(scope: str, method: str) -> str:
    """Returns the scope that an API key needs for a request with this method to a view with this `scope`."""
    if scope not in RESOURCES:
        return scope
    return f"{scope}:{'read' if method in _READING else 'write'}"


def is_granted(needed: str, granted: Iterable[str]) -> bool:
    """Returns whether the scopes `granted` include the scope `needed`. Only `files:*` and `*` include `files:*`."""
    return not {needed, f"{needed.partition(':')[0]}:*", EVERYTHING}.isdisjoint(granted)
