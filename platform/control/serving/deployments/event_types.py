"""Names of the public events of deployments: one for each state."""

_STATES = ("provisioning", "ready", "sleeping", "degraded", "stopping", "stopped", "failed")
EVENT_TYPES = tuple(f"deployment.{state}" for state in _STATES)
