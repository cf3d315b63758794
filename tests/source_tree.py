"""The project's Python files, parsed once for the tests of layout, imports and style."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE_FOLDERS = ("platform", "sdk")  # folders on the import path: their names are not part of module names
TOP_LEVEL = ("benchmarks", "engine", "examples", "kernels", "platform", "sdk", "tests", "workers")


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: Path  # relative to the root
    module: str  # dotted name, as in an import
    text: str
    tree: ast.Module

    @property
    def is_test(self) -> bool:
        return self.path.parts[0] == "tests"

    @property
    def is_migration(self) -> bool:
        return "migrations" in self.path.parts


def source_files(root: Path = ROOT) -> Iterator[SourceFile]:
    """Yields every Python file in the project's folders and in its root (`manage.py`)."""
    paths = [*root.glob("*.py"), *(path for folder in TOP_LEVEL for path in (root / folder).rglob("*.py"))]
    for path in sorted(paths):
        if "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8")
            relative = path.relative_to(root)
            yield SourceFile(relative, module_name(relative), text, ast.parse(text, filename=str(relative)))


def module_name(path: Path) -> str:
    """Returns `control.queue.jobs.models` for `platform/control/queue/jobs/models.py`."""
    parts = list(path.with_suffix("").parts)
    if parts[0] in SOURCE_FOLDERS:
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)
