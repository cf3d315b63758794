"""Scopes of API keys and of members' roles.

Every view names its resource; the HTTP method decides between `read` and `write`.

files:read     one action on one resource
files:*        both actions
inference      requests to deployed models; not a resource, so it has no actions
admin          keys, members, projects and spend caps
*              everything
"""

from collections.abc import Iterable, Mapping, Sequence

RESOURCES: Mapping[str, str] = {
    "files": "files and uploads",
    "datasets": "datasets",
    "batches": "batches",
    "jobs": "jobs and their events",
    "models": "base models, adapters and hardware",
    "fine_tuning": "fine-tuning jobs",
    "pipelines": "pipelines, distillations and quotes",
    "speculators": "speculators and evaluations",
    "deployments": "deployments",
    "usage": "usage and costs",
    "spend_caps": "spend caps",
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
# The scopes of each `Member.Role`. A member's keys have no scope beyond these.
ROLE_SCOPES: Mapping[str, tuple[str, ...]] = {
    "owner": (EVERYTHING,),
    "member": (
        INFERENCE,
        "spend_caps:read",
        *(f"{resource}:*" for resource in RESOURCES if resource != "spend_caps"),
    ),
    "billing": ("usage:*", "spend_caps:*"),
    "read_only": tuple(f"{resource}:read" for resource in RESOURCES),
}
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
    resource = needed.partition(":")[0]
    sufficient = {needed, f"{resource}:*", EVERYTHING}
    if resource == "spend_caps":
        sufficient.add(ADMIN)
    return not sufficient.isdisjoint(granted)


def scopes_within(scopes: Sequence[str], limit: Sequence[str]) -> list[str]:
    """Returns the scopes that both lists include; for `files:*` and `files:read`, the result is `files:read`."""
    both = [scope for scope in scopes if is_granted(scope, limit)]
    return both + [scope for scope in limit if is_granted(scope, scopes) and scope not in both]
