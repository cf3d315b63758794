"""No configuration of a model or a speculator may make a loader import code."""

from typing import Any

import pytest

from workers.model_folders import CODE_KEYS, code_key


@pytest.mark.parametrize("key", sorted(CODE_KEYS))
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_code_key_is_found_at_any_depth(key: str, depth: int) -> None:
    values: Any = {"hidden_size": 8, key: {}}
    for _ in range(depth):
        values = {"parts": [{"harmless": 1}, values]}

    assert code_key(values) == key


def test_a_configuration_without_code_keys_is_accepted() -> None:
    assert code_key({"model_type": "llama", "rope": {"factor": 2.0}, "names": ["auto_map"]}) is None


def test_a_very_deep_configuration_is_searched_without_recursion() -> None:
    values: Any = {"auto_map": {}}
    for _ in range(100_000):
        values = [values]

    assert code_key(values) == "auto_map"
