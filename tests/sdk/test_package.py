"""The client is a separate package without dependencies on the service."""

import ast
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

SDK = Path(__file__).parents[2] / "sdk"
PROJECT = tomllib.loads((SDK / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = {
    requirement.name: next(iter(requirement.specifier)).version
    for file in ("requirements.txt", "requirements-web.txt")
    for line in (SDK.parent / file).read_text(encoding="utf-8").splitlines()
    if "==" in line and not line.startswith("#")
    for requirement in [Requirement(line)]
}


def imported() -> set[str]:
    names = set()
    for path in SDK.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"slipstream"}


def test_it_requires_exactly_the_packages_that_it_imports() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == imported()


def test_it_accepts_the_versions_that_it_is_tested_with() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert PINNED[requirement.name] in requirement.specifier, requirement


def test_its_command_is_the_projects_command() -> None:
    whole = tomllib.loads((SDK.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert PROJECT["scripts"] == whole["scripts"]
