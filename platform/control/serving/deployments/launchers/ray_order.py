"""The order for a Ray actor: a replica as JSON, with all that the actor's machine needs to start the replica's engine.

The machines of a Ray cluster have no access to the database. They read the files of models, speculators and adapters
from the same sources and the same storage as the supervisors.
"""

import json

from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.models import Deployment, Replica

_DEPLOYMENT = ("id", "organization_id", "generation", "engine")
_BASE_MODEL = ("id", "organization_id", "source", "path", "revision")
_SPECULATOR = ("id", "kind")
_ADAPTER = ("id", "name", "storage_prefix")


def order_of(replica: Replica, *, uses_tls: bool) -> str:
    """Returns the order for the deployment's current generation. The related rows must have been read."""
    deployment = replica.deployment
    speculator = deployment.speculator
    return json.dumps({
        "number": replica.number,
        "tls": uses_tls,
        "deployment": {**_values(deployment, _DEPLOYMENT), "name": deployment.served_name},
        "base_model": _values(deployment.base_model, _BASE_MODEL),
        "speculator": None if speculator is None else
            {**_values(speculator, _SPECULATOR), "storage_prefix": speculator.artifact_prefix},
        "adapters": [_values(adapter, _ADAPTER) for adapter in deployment.adapters.all()],
    })  # fmt: skip


def ordered(order: str) -> Replica:
    """Returns an unsaved replica with unsaved related objects. They have the values that `engine_process` reads."""
    values = json.loads(order)
    speculator = None if values["speculator"] is None else Speculator(**values["speculator"])
    deployment = Deployment(**values["deployment"], base_model=BaseModel(**values["base_model"]), speculator=speculator)
    # Django reads related rows from here if they have been prefetched.
    deployment._prefetched_objects_cache = {  # type: ignore[attr-defined]
        "adapters": [Adapter(**adapter) for adapter in values["adapters"]]
    }
    return Replica(deployment=deployment, number=values["number"])


def asks_for_tls(order: str) -> bool:
    return bool(json.loads(order).get("tls"))  # a supervisor of an earlier release does not ask for it


def _values(row: Deployment | BaseModel | Speculator | Adapter, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(row, name) for name in names}
