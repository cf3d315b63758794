"""Promise S8 of docs/reliability.md: detects content that responses, logs and events must never contain."""

import re
import site
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.client import AsyncClientHandler, ClientHandler

from tests.source_tree import ROOT

# A complete API key or webhook secret. The fields `key` and `secret` are exempt, because a new secret is returned once
# in one of these fields.
SECRETS = re.compile(r'(?<!"key":")(?<!"secret":")\b(sk_live_[0-9A-Za-z]{44}|whsec_[0-9A-Za-z+/=]{32,})')
INTERNALS = re.compile(
    r"Traceback \(most recent call last\)|\b(psycopg|sqlite3)\.|django\.db|"
    r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b[^\n]{1,200}\b(FROM|VALUES|SET|WHERE)\b|\"secret_sha256\":"
)


def secrets_in(text: str) -> list[str]:
    """Finds secrets in logs, which may contain internals."""
    found = [match[0] for match in SECRETS.finditer(text.replace('": "', '":"'))]
    return found + [settings.SECRET_KEY] * (settings.SECRET_KEY in text)


def leaks_in(text: str) -> list[str]:
    """Finds secrets and internals in responses to customers."""
    paths = (str(ROOT), str(settings.SLIPSTREAM.data_dir), *site.getsitepackages())
    internals = [match[0] for match in INTERNALS.finditer(text)]
    return secrets_in(text) + internals + [path for path in paths if path in text]


def check_response(path: str, response: Any) -> None:
    if path.startswith("/admin") or response.streaming:
        return  # operators may see internals; streamed content is a file, or is checked elsewhere
    headers = "\n".join(f"{name}: {value}" for name, value in response.items())
    leaks = leaks_in(f"{headers}\n{response.content.decode(errors='replace')}")
    assert leaks == [], f"the response of {path} contains {leaks}"


@contextmanager
def responses_checked() -> Iterator[None]:
    """Within this context, checks every response that a Django test client receives."""
    original, original_async = ClientHandler.__call__, AsyncClientHandler.__call__

    def checked(self: Any, environ: Any) -> Any:
        response = original(self, environ)
        check_response(environ["PATH_INFO"], response)
        return response

    async def checked_async(self: Any, scope: Any) -> Any:
        response = await original_async(self, scope)
        check_response(scope["path"], response)
        return response

    ClientHandler.__call__, AsyncClientHandler.__call__ = checked, checked_async  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientHandler.__call__, AsyncClientHandler.__call__ = original, original_async  # type: ignore[method-assign]
