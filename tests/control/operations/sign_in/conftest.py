from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache


@pytest.fixture(autouse=True)
def _forget_attempts() -> Iterator[None]:
    """Deletes the counts of attempts to sign in, which are in the cache and would outlive a test."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture(autouse=True)
def _hash_fast(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
