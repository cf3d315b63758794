"""Spend caps: what an organization, a project or a quote may cost. Jobs that reach one are paused."""
