"""The end of a log on this machine; in a production of several machines the one that wrote it has it."""

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
            return log.read().decode(errors="replace") or "Empty so far."
    except FileNotFoundError:
        return f"Not on this machine; who wrote it has it, in {'/'.join(path.parts[-3:])} of its data folder."
