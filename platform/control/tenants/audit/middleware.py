"""Lets services know on whose request they work."""

from control.core.api.around import around
from control.tenants.audit.record import on_behalf_of

AuditMiddleware = around(on_behalf_of)
