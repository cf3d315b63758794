"""Reads server-sent events. Only the field `data` is used."""

from slipstream.drivers import Steps
from slipstream.http import Lines


def next_data(source: Lines) -> Steps[str | None]:
    """Returns the data of the next event that has data, or None at the end. Raises: httpx2.TransportError."""
    data: list[str] = []
    while (line := (yield from source.read())) is not None:
        name, _, value = line.partition(":")
        if not line and data:
            return "\n".join(data)
        if name == "data":
            data.append(value.removeprefix(" "))
    return None
