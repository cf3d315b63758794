"""Names of the public events of deployments: their states."""

_STATES = ("provisioning", "ready", "sleeping", "degraded", "stopping", "stopped", "failed")
EVENT_TYPES = tuple(f"deployment.{state}" for state in _STATES)
