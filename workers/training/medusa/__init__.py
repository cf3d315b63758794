"""Medusa heads: config, data, loss and method. The module itself is `engine.drafters.medusa_heads`, as it is served."""
