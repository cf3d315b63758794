"""One runner per engine, each started in a virtual environment of its own."""
