"""OpenAI's list of models: deployments and base models under one name each."""
