"""Deployments, their supervisor, rollouts, captured traffic and the gateway to endpoints."""
