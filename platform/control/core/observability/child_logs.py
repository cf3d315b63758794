"""What a child process is told about its log: to write as we do, and whose it is (`workers.log_lines` reads it)."""

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings

VARIABLE = "SLIPSTREAM_CHILD_LOG"


def child_log_environment(ids: Mapping[str, Any]) -> dict[str, str]:
    return {VARIABLE: json.dumps({"json": settings.LOGS_ARE_JSON, "ids": dict(ids)}, default=str)}
