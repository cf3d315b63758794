"""Rows of tables as JSON lines."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.fernet import InvalidToken
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from control.serving.captures.models import CapturedRequest
from control.serving.captures.sealing import Sealer
from control.tenants.accounts.models import Member
from control.workflows.offboarding.contents import SECRET_COLUMNS
from control.workflows.offboarding.tables import OwnedTable

ROWS_A_READ = 500
# Only captured requests have rows that may be large: each holds a request's body.
CAPTURED_BYTES_A_READ = 16 << 20


def rows_after(table: OwnedTable, organization_id: str, pk: Any) -> list[Any]:
    """Returns the next rows in the order of the primary key.

    An organization's rows are read in several steps, so memory does not grow with their number.

    Args: pk: the primary key of the last row that was read; None: no row was read yet.
    """
    rows = table.rows(organization_id).order_by("pk")
    if pk is not None:
        rows = rows.filter(pk__gt=pk)
    if table.model is Member:
        rows = rows.select_related("user")
    if table.model is not CapturedRequest:
        return list(rows[:ROWS_A_READ])
    fitting: list[Any] = []
    num_bytes = 0
    for identity, size_bytes in rows.values_list("pk", "size_bytes")[:ROWS_A_READ]:
        num_bytes += size_bytes
        if fitting and num_bytes > CAPTURED_BYTES_A_READ:
            break
        fitting.append(identity)
    return list(rows.filter(pk__in=fitting))


def json_lines(rows: Sequence[Model], organization_id: str) -> bytes:
    sealer = Sealer.of(organization_id) if isinstance(rows[0], CapturedRequest) else None
    values = [_values(row, sealer) for row in rows]
    return b"".join(json.dumps(value, cls=_Encoder, separators=(",", ":")).encode() + b"\n" for value in values)


def _values(row: Model, sealer: Sealer | None) -> dict[str, Any]:
    left_out = SECRET_COLUMNS.get(row._meta.label, frozenset())
    values = {f.attname: getattr(row, f.attname) for f in row._meta.concrete_fields if f.attname not in left_out}
    if isinstance(row, Member):
        values["email"] = row.user.username
    if isinstance(row, CapturedRequest) and sealer is not None and row.body is None:
        values["body"] = _opened(row, sealer)
    return values


def _opened(row: CapturedRequest, sealer: Sealer) -> dict[str, Any] | None:
    """Returns None if the request cannot be decrypted: the other rows are exported nevertheless."""
    try:
        return sealer.open(bytes(row.sealed), deployment_id=row.deployment_id)
    except (InvalidTag, InvalidToken):
        return None


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        return base64.b64encode(bytes(o)).decode() if isinstance(o, bytes | memoryview) else super().default(o)
