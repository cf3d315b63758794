"""Models, their weights, and the interface between a model and the engine."""
