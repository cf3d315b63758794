"""Log settings of a child process: the format, and ids to add to each line. `workers.log_lines` reads the settings."""

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings

VARIABLE = "SLIPSTREAM_CHILD_LOG"


def child_log_environment(ids: Mapping[str, Any]) -> dict[str, str]:
    return {VARIABLE: json.dumps({"json": settings.LOGS_ARE_JSON, "ids": dict(ids)}, default=str)}
