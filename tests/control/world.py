"""Example objects of one organization, and valid request bodies, for the tests that cover all routes.

The test folder of each resource declares its examples in a file `examples.py`. This file has one function per object,
which takes the world and returns the object. Its `IDS` maps each parameter of a path to the id of an example, and its
`BODIES` each operation that takes a body to a valid body. The tests fail for a route that lacks an entry.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from control.tenants.accounts.models import Organization, Project
from control.tenants.row_security.scope import as_tenant
from tests.source_tree import ROOT


class World:
    """The example objects of an organization or project. Each attribute is created when it is first accessed.

    Args:
        own_project: the project to which the objects belong, or None if they belong to no project.
        objects: attributes to use instead of the examples.
    """

    def __init__(self, organization: Organization, own_project: Project | None = None, **objects: Any) -> None:
        self.organization, self.own_project = organization, own_project
        self.tag = (own_project or organization).pk[-8:]
        if own_project is not None:
            self.project = own_project
        vars(self).update(objects)

    def __getattr__(self, name: str) -> Any:
        """Creates the example object that the function `name` of an `examples.py` returns."""
        makers = [vars(module)[name] for module in example_modules() if _declares(module, name)]
        if len(makers) != 1:
            raise AttributeError(f"{len(makers)} files examples.py declare the object {name!r}, not one")
        with nullcontext() if self.own_project is None else as_tenant(self.organization.pk, self.own_project.pk):
            setattr(self, name, made := makers[0](self))
        return made

    def id_of(self, parameter: str) -> str:
        """A valid id for the parameter of a path or body. Raises: KeyError: the parameter is unknown."""
        return str(example_ids()[parameter](self))

    def ids_of_all_objects(self) -> dict[str, str]:
        """Creates one object of each kind. Returns: an id for each parameter."""
        return {name: self.id_of(name) for name in example_ids()}


@dataclass(frozen=True, slots=True)
class Body:
    make: Callable[[World], dict[str, Any]]
    # The keys are the members of the body that name an object. The value is the parameter for which `World.id_of`
    # returns the id of such an object.
    references: Mapping[str, str] = field(default_factory=dict)


Ids = Mapping[str, Callable[[World], Any]]
Bodies = Mapping[str, Body]  # by operation: "POST /v1/quotes"
NO_BODY = Body(lambda world: {})
FORM = Body(lambda world: {})  # multipart: the test sends a file


def example_ids() -> Ids:
    return _merged("IDS")


def example_bodies() -> Bodies:
    return _merged("BODIES")


@cache
def example_modules() -> tuple[ModuleType, ...]:
    files = sorted(Path(__file__).parent.rglob("examples.py"))
    return tuple(import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in files)


def _declares(module: ModuleType, name: str) -> bool:
    """Tells whether the module itself defines the function `name`; an imported function does not count."""
    return getattr(vars(module).get(name), "__module__", None) == module.__name__


@cache
def _merged(table: str) -> dict[str, Any]:
    """Returns the union of the dictionaries called `table` (`IDS` or `BODIES`) of all files `examples.py`."""
    entries = [entry for module in example_modules() for entry in vars(module).get(table, {}).items()]
    assert len(entries) == len(dict(entries)), f"two files examples.py have the same key in {table}"
    return dict(entries)


def with_reference(body: dict[str, Any], member: str, value: str) -> dict[str, Any]:
    """Returns `body` with `value` at the path `member`, which leads into a list (`ids.0`) or object (`training.x`)."""
    name, _, rest = member.partition(".")
    if not rest:
        return {**body, name: value}
    return {**body, name: [value] if rest.isdigit() else {**body.get(name, {}), rest: value}}
