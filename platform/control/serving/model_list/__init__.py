"""OpenAI's list of models: an organization's deployments, their adapters, and base models."""
