"""For operators: the console, the embedded stack, monitoring and the OpenAPI document."""
