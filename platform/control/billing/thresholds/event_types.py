"""Names of the public events of spending."""

THRESHOLD_REACHED = "spending.threshold_reached"
EVENT_TYPES = (THRESHOLD_REACHED,)
