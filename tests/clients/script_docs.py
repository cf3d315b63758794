"""Reads the checks of each script from its syntax tree. The scripts cannot be imported here, because their packages are
installed only in the clients' environments."""

import ast
from dataclasses import dataclass

from tests.clients.environments import Client


@dataclass(frozen=True, slots=True)
class Script:
    settings: str  # how a user points the client to Slipstream: the module's docstring
    checks: dict[str, str]  # the name of each check's function, and what it exercises


def read_script(client: Client) -> Script:
    tree = ast.parse(client.script.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
    checks = {function.name: _docstring(function) for function in functions}
    return Script(_docstring(tree), checks)


def _docstring(node: ast.Module | ast.FunctionDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split())
