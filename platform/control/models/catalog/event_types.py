"""Names of the public events of base models and speculators."""

EVENT_TYPES = ("base_model.ready", "base_model.refused", "speculator.ready", "speculator.failed")
