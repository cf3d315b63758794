"""Creates a row of any model, so that tests of all tables also cover tables that are added later."""

import itertools
import secrets
from typing import Any

from django.db import models
from django.utils import timezone

from control.tenants.accounts.models import Organization

_number = itertools.count(1)


def make_any_row(model: type[models.Model], organization: Organization) -> models.Model:
    """Creates the row and all rows that it refers to, all of them owned by the organization."""
    if model is Organization:
        return organization
    values = {field.name: _value(field, organization) for field in model._meta.concrete_fields if _is_needed(field)}
    return model._default_manager.create(**values)


def _is_needed(field: Any) -> bool:
    if isinstance(field, models.ForeignKey) and field.related_model is Organization:
        return True
    return not (field.null or field.has_default() or getattr(field, "auto_created", False))


def _value(field: Any, organization: Organization) -> Any:
    match field:
        case models.ForeignKey():
            related = field.related_model
            assert isinstance(related, type)
            return make_any_row(related, organization)
        case _ if field.choices:
            return field.choices[0][0]
        case models.CharField() | models.TextField():
            return secrets.token_hex(32)[: field.max_length or 64]
        case models.DateTimeField():
            return timezone.now()
        case models.DateField():
            return timezone.now().date()
        case models.GenericIPAddressField():
            return "192.0.2.1"
        case models.JSONField():
            return {}
        case models.BooleanField():
            return False
        case models.BinaryField():
            return b"x"
        case models.IntegerField() | models.FloatField():
            return next(_number)  # grows with each field, so that `row_to` is larger than `row_from`
    raise AssertionError(f"no value for {field!r}")
