"""The client, in the folder sdk, is a separate package that does not depend on the service."""

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


def imported_packages() -> set[str]:
    names = set()
    for path in SDK.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"slipstream"}


def test_the_client_requires_exactly_the_packages_that_it_imports() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == imported_packages()


def test_the_clients_requirements_allow_the_versions_that_the_tests_use() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert PINNED[requirement.name] in requirement.specifier, requirement


def test_the_client_and_the_whole_project_define_the_same_command() -> None:
    whole_project = tomllib.loads((SDK.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert PROJECT["scripts"] == whole_project["scripts"]
