"""Runners, one for each engine. A runner answers prompts in a process of its own, in the engine's environment."""
