"""Lets services know on whose request they work."""

from control.api.around import around
from control.audit.record import on_behalf_of

AuditMiddleware = around(on_behalf_of)
