"""Runners, one for each engine. A runner is a process that answers prompts, in the engine's virtual environment."""
