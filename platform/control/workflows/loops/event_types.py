"""Names of the public events of loops: one for each status of a round, and one for a round that may not begin."""

_STATUSES = (
    "capturing", "distilling", "training", "evaluating", "gating", "rolling_out",
    "promoted", "rejected", "rolled_back", "failed", "stopped",
)  # fmt: skip
EVENT_TYPES = (*(f"loop.round.{status}" for status in _STATUSES), "loop.blocked")
