"""Finds the tests that a page of the documentation names as `tests/path/test_x.py::test_name`."""

import ast
import re
from functools import cache

from tests.source_tree import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def missing_tests(text: str) -> list[str]:
    """Returns those tests named in `text` that do not exist."""
    return [f"{path}::{name}" for path, name in NAMED.findall(text) if name not in _functions(path)]


@cache
def _functions(path: str) -> frozenset[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.exists() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
