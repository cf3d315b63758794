"""Checks that neither the quiet organization's engine nor a process of the installation has ended."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    token: str  # API key of the quiet organization
    engine: int  # process id of the engine of the quiet organization's endpoint
    processes: Sequence[int]  # process ids of the installation

    @classmethod
    def when_ready(cls, token: str, processes: Sequence[int]) -> Self:
        """Waits until the quiet organization's endpoint is ready. Raises: TimeoutError."""
        deadline = time.monotonic() + START_SECONDS
        while (engine := _engine(token)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the endpoint is not ready after {START_SECONDS:g} s")
            time.sleep(0.1)
        return cls(token=token, engine=engine, processes=processes)

    def missing(self) -> list[str]:
        """Describes each process that has ended."""
        missing = [f"process {pid} has ended" for pid in self.processes if not _is_alive(pid)]
        if _engine(self.token) != self.engine or not _is_alive(self.engine):
            missing.append("the quiet organization's engine was killed")
        return missing


def _engine(token: str) -> int | None:
    """Returns the process id of the engine of the organization's endpoint, or None if the endpoint is not ready."""
    from control.serving.deployments.models import Deployment
    from control.tenants.authentication.api_keys import key_of
    from control.tenants.row_security.scope import as_tenant

    organization = key_of(f"Bearer {token}").organization
    with as_tenant(organization.pk, None):
        deployment = Deployment.objects.get(organization=organization)
        replica = deployment.replicas.first()
    return replica.pid if replica is not None and deployment.state == Deployment.State.READY else None


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
