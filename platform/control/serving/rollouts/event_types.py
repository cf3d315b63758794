"""Names of the public events of rollouts: one for each status except `starting`."""

EVENT_TYPES = (
    "rollout.canary",
    "rollout.promoting",
    "rollout.watching",
    "rollout.promoted",
    "rollout.rolled_back",
)
