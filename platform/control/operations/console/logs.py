"""Shows the end of a log file on this machine. A log that another machine wrote cannot be shown."""

from pathlib import Path

from django.utils.html import format_html
from django.utils.safestring import SafeString

TAIL_BYTES = 8192


def log_tail(key: str, path: Path) -> SafeString:
    return format_html('<pre class="console-log" data-live="{}">{}</pre>', key, _tail(path))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return log.read().decode(errors="replace") or "The log is still empty."
    except FileNotFoundError:
        relative = "/".join(path.parts[-3:])
        return f"The log is on another machine, which wrote it: {relative} in the data folder of that machine."
