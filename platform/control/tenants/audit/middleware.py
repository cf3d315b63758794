"""Lets services know on whose request they work."""

from control.core.api.middleware import make_middleware
from control.tenants.audit.record import on_behalf_of

AuditMiddleware = make_middleware(on_behalf_of)
