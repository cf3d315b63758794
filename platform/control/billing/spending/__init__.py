"""Spend caps of organizations, projects and quotes. Jobs that reach a cap are paused."""
