"""Names of the public events of a deployment's acceptance length. The object of the events is the deployment."""

EVENT_TYPES = ("acceptance.dropped", "acceptance.recovered")
