"""Names of the public events of rollouts: the statuses after the first."""

EVENT_TYPES = ("rollout.canary", "rollout.promoting", "rollout.promoted", "rollout.rolled_back")
