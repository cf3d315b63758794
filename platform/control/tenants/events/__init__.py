"""The ordered feed of an organization's events, from which /v1/events and webhooks are served."""
