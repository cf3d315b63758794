"""Rules of the folder layout: no folder hides a module of the standard library, and importing has no effect."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT, SOURCE_FOLDERS, TOP_LEVEL, source_files

PACKAGES = ("kernels", "engine", "workers", "control", "slipstream")


def importable_names() -> list[str]:
    """Returns the names that `import NAME` finds in the project's folders if these come first in the path."""
    roots = [ROOT, *(ROOT / folder for folder in SOURCE_FOLDERS)]
    modules = [path.stem for root in roots for path in root.glob("*.py")]
    packages = [path.parent.name for root in roots for path in root.glob("*/__init__.py")]
    return modules + packages


def test_import_platform_finds_the_standard_library() -> None:
    """A new interpreter in the project's root first looks for modules there, where a folder is called `platform`."""
    program = "import platform; print(platform.__file__); assert platform.system()"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert not Path(result.stdout.strip()).is_relative_to(ROOT / "platform")


def test_platform_is_a_folder_but_not_a_package() -> None:
    assert (ROOT / "platform").is_dir()
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_no_project_module_shadows_the_standard_library() -> None:
    assert sorted(set(importable_names()) & set(sys.stdlib_module_names)) == []


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_are_imported_from_this_checkout(name: str) -> None:
    module = importlib.import_module(name)

    assert module.__file__ is not None
    assert Path(module.__file__).is_relative_to(ROOT), f"another installed package named {name!r} was imported"


def test_kernels_has_no_version() -> None:
    """With a version, transformers would mistake this package for the package `kernels` on PyPI."""
    assert not hasattr(importlib.import_module("kernels"), "__version__")


def test_init_files_contain_at_most_a_docstring() -> None:
    """An import has no effect. Only the SDK's `__init__.py` may list its exports."""
    with_code = []
    for file in source_files():
        if file.path.name != "__init__.py":
            continue
        allowed: tuple[type[ast.stmt], ...] = ()
        if file.module == "slipstream":
            allowed = (ast.ImportFrom, ast.Assign)
        statements = [node for node in file.tree.body if not _is_docstring(node) and not isinstance(node, allowed)]
        if statements:
            with_code.append(str(file.path))

    assert with_code == []


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_every_folder_with_python_is_a_package() -> None:
    """Test folders are packages, too; otherwise test files with the same name in different folders would collide."""
    folders = {
        parent
        for folder in TOP_LEVEL
        for path in (ROOT / folder).rglob("*.py")
        for parent in path.relative_to(ROOT).parents
        if parent != Path() and str(parent) not in SOURCE_FOLDERS
    }
    missing = sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists())

    assert missing == []
