"""One runner per engine, each started in its own virtual environment."""
