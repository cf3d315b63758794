"""Server-sent events, as far as the API uses them."""

from dataclasses import dataclass

from slipstream.drivers import Steps
from slipstream.http import Lines


@dataclass(frozen=True, slots=True)
class Sent:
    data: str
    id: str | None


def next_event(source: Lines) -> Steps[Sent | None]:
    """The next event that has data; None at the end. Raises: httpx2.TransportError."""
    data: list[str] = []
    identity: str | None = None
    while (line := (yield from source.read())) is not None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line and data:
            return Sent("\n".join(data), identity)
        if name == "data":
            data.append(value)
        elif name == "id":
            identity = value
    return None
