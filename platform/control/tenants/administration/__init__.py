"""The API for members, projects and API keys, and the services that write them."""
