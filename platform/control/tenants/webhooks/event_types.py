"""Names of the public events of webhook endpoints."""

ENDPOINT_TEST, ENDPOINT_DISABLED = "webhook_endpoint.test", "webhook_endpoint.disabled"
EVENT_TYPES = (ENDPOINT_TEST, ENDPOINT_DISABLED)
