"""Finds, from syntax trees, the packages that a file of the project needs and that are not installed.

A file needs the packages that it imports at the top, and the packages that the imported project files need in turn.
Imports inside functions do not count.
"""

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path

from tests.source_tree import ROOT, SOURCE_FOLDERS

_ROOTS = (ROOT, *(ROOT / folder for folder in SOURCE_FOLDERS))


def missing(path: Path) -> frozenset[str]:
    """Returns the packages that a file of the project needs and that are not installed."""
    packages: set[str] = set()
    visited: set[Path] = set()
    pending = [path]
    while pending:
        file = pending.pop()
        if file in visited:
            continue
        visited.add(file)
        for name in _imported(file):
            project_files = list(_project_files(name))
            pending += project_files
            if not project_files and not _is_installed(name.split(".")[0]):
                packages.add(name.split(".")[0])
    return frozenset(packages)


@cache
def _imported(file: Path) -> tuple[str, ...]:
    """Returns the dotted names that a file imports; `from a import b` counts as `a.b`, since b may be a module."""
    names: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


@cache
def _project_files(name: str) -> tuple[Path, ...]:
    """Returns the file of the project module `name`, or of the module that defines `name`; empty for other names."""
    parts = name.split(".")
    for root in _ROOTS:
        for count in (len(parts), len(parts) - 1):
            path = root.joinpath(*parts[:count])
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if count and file.is_file():
                    return (file,)
    return ()


@cache
def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None
