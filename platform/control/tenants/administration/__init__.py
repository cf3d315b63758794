"""The API for members, projects and keys, and the services that write them."""
