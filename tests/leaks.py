"""S8: detects content that responses, logs and events must never contain."""

import re
import site
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.client import AsyncClientHandler, ClientHandler

from tests.source_tree import ROOT

# A complete key or webhook secret; responses that show one once are allowed by the names of their fields.
SECRETS = re.compile(r'(?<!"key":")(?<!"secret":")\b(sk_live_[0-9A-Za-z]{44}|whsec_[0-9A-Za-z+/=]{32,})')
INSIDES = re.compile(
    r"Traceback \(most recent call last\)|\b(psycopg|sqlite3)\.|django\.db|"
    r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b[^\n]{1,200}\b(FROM|VALUES|SET|WHERE)\b|\"secret_sha256\":"
)


def secrets_in(text: str) -> list[str]:
    """Finds secrets in logs, which may contain internals."""
    found = [match[0] for match in SECRETS.finditer(text.replace('": "', '":"'))]
    return found + [settings.SECRET_KEY] * (settings.SECRET_KEY in text)


def leaks_in(text: str) -> list[str]:
    """Finds secrets and internals in responses to customers."""
    places = (str(ROOT), str(settings.SLIPSTREAM.data_dir), *site.getsitepackages())
    insides = [match[0] for match in INSIDES.finditer(text)]
    return secrets_in(text) + insides + [place for place in places if place in text]


def check_answer(path: str, answer: Any) -> None:
    if path.startswith("/admin") or answer.streaming:
        return  # operators may see internals; streams are files, or consist of content that is checked elsewhere
    headers = "\n".join(f"{name}: {value}" for name, value in answer.items())
    leaks = leaks_in(f"{headers}\n{answer.content.decode(errors='replace')}")
    assert leaks == [], f"the answer of {path} holds {leaks}"


@contextmanager
def answers_checked() -> Iterator[None]:
    """Checks every response to a test's client within the context."""
    whole, whole_async = ClientHandler.__call__, AsyncClientHandler.__call__

    def checked(self: Any, environ: Any) -> Any:
        answer = whole(self, environ)
        check_answer(environ["PATH_INFO"], answer)
        return answer

    async def checked_async(self: Any, scope: Any) -> Any:
        answer = await whole_async(self, scope)
        check_answer(scope["path"], answer)
        return answer

    ClientHandler.__call__, AsyncClientHandler.__call__ = checked, checked_async  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientHandler.__call__, AsyncClientHandler.__call__ = whole, whole_async  # type: ignore[method-assign]
