"""OpenAI's `metadata`: key-value pairs that a caller attaches to an object."""

from typing import Annotated

from pydantic import AfterValidator, Field

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512


def _check(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_PAIRS:
        raise ValueError(f"at most {MAX_PAIRS} pairs, got {len(metadata)}")
    for key in metadata:
        if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
            raise ValueError(f"a key must have 1 to {MAX_KEY} printable characters, got {key[:80]!a}")
    return metadata


Metadata = Annotated[dict[str, Annotated[str, Field(max_length=MAX_VALUE)]], AfterValidator(_check)]
