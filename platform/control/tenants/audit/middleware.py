"""Middleware that makes the current request available to audited services."""

from control.core.api.middleware import make_middleware
from control.tenants.audit.record import on_behalf_of

AuditMiddleware = make_middleware(on_behalf_of)
