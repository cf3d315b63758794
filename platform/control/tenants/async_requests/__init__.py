"""ASGI applications that hold no thread while they wait, for requests that take long."""
