"""Renames the members in errors of translated requests, to the names that the caller used.

/v1/messages and /v1/responses translate a body to the body of a chat completion, which `parse_chat` parses. Errors of
`parse_chat` name members of the translated body.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from engine.fields import InvalidRequest


@contextmanager
def renamed_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Re-raises an `InvalidRequest` of the `with` block with the caller's names.

    Args:
        names: maps names of members of the chat completion to the caller's names. The longest of the names that is a
            prefix of the error's member is replaced.
    """
    try:
        yield
    except InvalidRequest as error:
        if error.param is None or (found := _longest_prefix(error.param, names)) is None:
            raise
        param = names[found] + error.param[len(found) :]
        written, correct = (error.param, param) if error.param in error.message else (found, names[found])
        message = error.message.replace(written, correct)
        raise InvalidRequest(message, param=param, code=error.code, status=error.status) from error


def _longest_prefix(param: str, names: Mapping[str, str]) -> str | None:
    matching = [name for name in names if param == name or param.startswith((f"{name}.", f"{name}["))]
    return max(matching, key=len, default=None)
