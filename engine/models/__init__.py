"""Models other than the dense decoder of the Llama family, and what every model is to the engine."""
