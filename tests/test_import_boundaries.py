"""Checks which modules may import which. Only the syntax trees are read, so neither torch nor Django is needed.

`a <- b` means that b may import a; `a -> b` means that a may import only b among the project's modules.

    kernels  <-  engine  <-  workers.inference, workers.training   (run in a worker's child process)
    workers.contracts  <-  everything                              (specs, events, error codes)
    workers.kinds  <-  everything                                  (names of the kinds of speculators)
    workers.model_folders  <-  engine, control                     (rules for the files of a model)
    workers.model_types  <-  control                               (model types that are served)
    workers.stored_weights  <-  workers.model_sizes  <-  workers.planning  <-  engine, control
                                                                   (a model's files and sizes; plans of memory)
    workers.parent_death  <-  engine, control                      (commands that end with their parent)
    control  ->  workers.contracts, .kinds, .hyperparameters,      (no torch in the web image)
                 .exports, .model_folders, .model_types, .parent_death,
                 .planning, .model_sizes, .stored_weights
    workers.supervisor  ->  control services, workers.contracts    (no torch in the supervisor)

The folders directly below `control` are called rooms. A room may import the rooms that precede it in ROOMS, but not
the rooms that follow it. Within a room, a cycle of imports may have at most two apps.

Imports inside functions, under TYPE_CHECKING and through `import_module("...")` count, too.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source_tree import ROOT, SourceFile, source_files

PROJECT = frozenset(
    {"kernels", "engine", "workers", "control", "slipstream", "benchmarks", "examples", "tests", "manage"}
)
SERVICES = frozenset({"django", "rest_framework", "unfold", "celery", "kombu", "redis", "boto3", "botocore", "psycopg"})
TENSORS = frozenset({"torch", "triton", "transformers", "safetensors", "peft", "accelerate", "numpy"})
CONTRACTS = "workers.contracts"
HYPERPARAMETERS = "workers.hyperparameters"  # validated by the API before the trainer reads them
KINDS = "workers.kinds"  # the names of the kinds of speculators that can be trained
MODEL_FOLDERS = "workers.model_folders"  # the files and configuration keys that a model folder may contain
MODEL_TYPES = "workers.model_types"  # the model types that are served
PARENT_DEATH = "workers.parent_death"
PLANNING = "workers.planning"  # the memory of an engine, planned from the sizes of the model
MODEL_SIZES = "workers.model_sizes"  # the sizes of a model, from config.json and its files
STORED_WEIGHTS = "workers.stored_weights"  # what the files of a model hold
EXPORTS = "workers.exports"  # conversions of speculators, made by the API on bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What `module` and its submodules may import, besides the standard library and each other."""

    module: str
    project: tuple[str, ...] = ()  # modules of this project, with their submodules
    packages: frozenset[str] | None = None  # packages from elsewhere; None: all except those in `banned`
    banned: frozenset[str] = frozenset()


# jinja2 renders chat templates.
ENGINE = frozenset({"torch", "triton", "transformers", "safetensors", "numpy", "jinja2", "xgrammar"})

# A file belongs to the layer with the longest `module` that equals the file's module or contains it.
LAYERS = (
    Layer(module="kernels", packages=frozenset({"torch", "triton", "numpy"})),
    Layer(
        module="engine",
        project=("kernels", CONTRACTS, KINDS, MODEL_FOLDERS, MODEL_SIZES, PARENT_DEATH, PLANNING, STORED_WEIGHTS),
        packages=ENGINE,
    ),
    Layer(
        module="engine.server",
        project=("engine", "kernels"),
        packages=ENGINE | {"starlette", "uvicorn", "prometheus_client"},
    ),
    Layer(module=CONTRACTS, packages=frozenset()),
    Layer(module=KINDS, packages=frozenset()),
    Layer(module=MODEL_FOLDERS, packages=frozenset()),
    Layer(module=MODEL_TYPES, packages=frozenset()),
    Layer(module=PARENT_DEATH, packages=frozenset()),
    Layer(module=PLANNING, project=(MODEL_SIZES, STORED_WEIGHTS), packages=frozenset()),
    Layer(module=MODEL_SIZES, project=(STORED_WEIGHTS,), packages=frozenset()),
    Layer(module=STORED_WEIGHTS, packages=frozenset()),
    Layer(module=HYPERPARAMETERS, project=(EXPORTS, KINDS), packages=frozenset()),
    Layer(module=EXPORTS, project=(KINDS, MODEL_FOLDERS), packages=frozenset()),
    Layer(module="workers", project=("kernels", "engine", CONTRACTS, HYPERPARAMETERS, KINDS), banned=SERVICES),
    Layer(
        module="workers.supervisor", project=("control", CONTRACTS, PARENT_DEATH, "workers.celery_app"), banned=TENSORS
    ),
    Layer(
        module="workers.celery_app", project=("control", CONTRACTS, PARENT_DEATH, "workers.supervisor"), banned=TENSORS
    ),
    Layer(
        module="control",
        project=(
            *(CONTRACTS, HYPERPARAMETERS, EXPORTS, KINDS, MODEL_FOLDERS, MODEL_SIZES, MODEL_TYPES, PARENT_DEATH),
            *(PLANNING, STORED_WEIGHTS),
        ),
        banned=TENSORS,
    ),
    Layer(module="slipstream", project=("slipstream.progress",), packages=frozenset({"httpx2", "standardwebhooks"})),
    Layer(module="slipstream.certificates", project=("slipstream.errors",), packages=frozenset({"cryptography"})),
    Layer(module="slipstream.archives", project=("slipstream.certificates", "slipstream.errors")),
    Layer(module="slipstream.cli", project=("slipstream",), packages=frozenset({"typer", "rich"})),
    Layer(module="slipstream.progress", project=("slipstream.types",), packages=frozenset({"rich"})),
    Layer(module="examples", project=("slipstream",), banned=SERVICES),
    Layer(
        module="benchmarks",
        project=(
            *("engine", "kernels", "examples", "workers.training", EXPORTS, HYPERPARAMETERS, KINDS, MODEL_SIZES),
            *(PLANNING, STORED_WEIGHTS),
        ),
        banned=SERVICES,
    ),
    Layer(
        module="benchmarks.models",
        project=("engine", "kernels", "tests.engine", "tests.tiny_model", MODEL_TYPES),
        banned=SERVICES,
    ),
    Layer(
        module="benchmarks.day",
        project=("benchmarks.report", "benchmarks.workloads", "examples", "slipstream"),
        banned=SERVICES,
    ),
    Layer(module="benchmarks.job_claims", project=("control",), banned=TENSORS),
    Layer(module="benchmarks.gateway", project=("control",), banned=TENSORS),
    Layer(
        module="benchmarks.neighbours",
        project=("benchmarks.gateway", "control", "workers.supervisor"),
        banned=TENSORS,
    ),
    Layer(module="benchmarks.datasets", project=("control.workflows.datasets.validation",), packages=frozenset()),
    Layer(module="manage", project=(PARENT_DEATH,), packages=frozenset({"django"})),
    Layer(module="tests", project=tuple(PROJECT)),
)


def below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def layer_of(module: str) -> Layer:
    matching = [layer for layer in LAYERS if below(module, layer.module)]
    assert matching, f"{module} belongs to no layer: give it one in LAYERS"
    return max(matching, key=lambda layer: len(layer.module))


def imports(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) for every import. `from a import b` counts as `a.b`, since b may be a module."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or "")
                continue
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0]
            if isinstance(argument, ast.JoinedStr):  # an f-string counts as the package that it begins with
                argument = argument.values[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value.rstrip(".")


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__") and bool(node.args)


def reason_against(layer: Layer, imported: str) -> str | None:
    """Returns why `layer` may not import `imported`; None if it may."""
    top = imported.split(".")[0]
    if imported.startswith("."):
        return "is relative: imports here are absolute"
    if top in PROJECT:
        own = layer_of(imported) is layer
        is_parent = any(below(name, imported) for name in layer.project)  # `import workers` runs no code
        if own or is_parent or any(below(imported, name) for name in layer.project):
            return None
        return f"may import only itself and {layer.project} of this project"
    if top in sys.stdlib_module_names or top == "__future__":
        return None
    if layer.packages is not None and top not in layer.packages:
        return f"may import only {sorted(layer.packages)} of other packages"
    return "is banned here" if top in layer.banned else None


def violations(root: Path) -> list[str]:
    found = []
    for file in source_files(root):
        layer = layer_of(file.module)
        for line, imported in imports(file):
            reason = reason_against(layer, imported)
            if reason is not None:
                found.append(f"{file.path}:{line}: {file.module} imports {imported}: {layer.module} {reason}")
    return found


ROOMS = ("core", "tenants", "billing", "queue", "data", "models", "serving", "workflows", "operations")


def room_imports(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields (file and line, own name, imported name) for every import between apps of `control`.

    Both names are split at their dots.
    """
    for file in source_files(root):
        own = file.module.split(".")
        if own[0] != "control" or len(own) < 3 or file.is_migration:
            continue  # modules such as `control.urls` belong to no room and may import every room
        for line, name in imports(file):
            imported = name.split(".")
            if imported[0] == "control" and len(imported) > 2 and imported[1:3] != own[1:3]:
                yield f"{file.path}:{line}", own, imported


def imports_of_later_rooms(root: Path) -> list[str]:
    """Describes every import of a module in a later room."""
    return [
        f"{where} imports {'.'.join(imported)}"
        for where, own, imported in room_imports(root)
        if ROOMS.index(imported[1]) > ROOMS.index(own[1])
    ]


def long_cycles(root: Path) -> set[frozenset[str]]:
    """Returns the cycles of imports that have three or more apps of one room."""
    imported_apps: dict[str, set[str]] = {}
    for _, own, imported in room_imports(root):
        if own[1] == imported[1]:
            imported_apps.setdefault(".".join(own[1:3]), set()).add(".".join(imported[1:3]))

    def cycles(path: tuple[str, ...]) -> Iterator[frozenset[str]]:
        for app in imported_apps.get(path[-1], ()):
            if app == path[0]:
                yield frozenset(path)
            elif app not in path:
                yield from cycles((*path, app))

    return {cycle for app in imported_apps for cycle in cycles((app,)) if len(cycle) > 2}


def test_rooms_lists_the_folders_of_control() -> None:
    folders = {path.parent.name for path in (ROOT / "platform" / "control").glob("*/__init__.py")}

    assert folders == set(ROOMS)
    assert len(ROOMS) <= 9


def test_no_room_imports_a_later_room() -> None:
    assert imports_of_later_rooms(ROOT) == []


def test_no_cycle_of_imports_has_more_than_two_apps_of_a_room() -> None:
    assert long_cycles(ROOT) == set()


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("core/ids.py", "from control.tenants.accounts.models import Organization"),
        ("queue/jobs/services.py", "from control.workflows.batches.models import Batch"),
        ("serving/deployments/services.py", "def late() -> None:\n    from control.operations.console import base"),
    ],
)
def test_an_added_import_of_a_later_room_is_found(tmp_path: Path, path: str, statement: str) -> None:
    target = tmp_path / "platform" / "control" / path
    target.parent.mkdir(parents=True)
    target.write_text(statement + "\n")

    assert len(imports_of_later_rooms(tmp_path)) == 1


def test_an_added_cycle_of_three_apps_is_found(tmp_path: Path) -> None:
    for app, imported in (("files", "uploads"), ("uploads", "parts"), ("parts", "files")):
        folder = tmp_path / "platform" / "control" / "data" / app
        folder.mkdir(parents=True)
        (folder / "models.py").write_text(f"from control.data.{imported} import models\n")

    assert long_cycles(tmp_path) == {frozenset({"data.files", "data.uploads", "data.parts"})}


def test_every_import_is_allowed_by_its_layer() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("kernels/linear.py", "import transformers"),
        ("kernels/linear.py", "import engine.loop"),
        ("engine/loop.py", "import celery"),
        ("engine/loop.py", "from django.db import models"),
        ("engine/loop.py", "import boto3"),
        ("engine/loop.py", "import redis"),
        ("engine/loop.py", "from engine.server import app"),
        ("engine/loop.py", "from workers import inference"),
        ("workers/contracts.py", "import pydantic"),
        ("workers/contracts.py", "import workers.failures"),
        ("workers/hyperparameters/mtp.py", "import torch"),
        ("workers/hyperparameters/mtp.py", "from workers.failures import UserConfigError"),
        ("workers/inference/batch.py", "from control.queue.jobs import services"),
        ("workers/training/medusa/loss.py", "from workers.supervisor import run"),
        ("workers/run.py", "import celery"),
        ("workers/supervisor/run.py", "import torch"),
        ("workers/supervisor/run.py", "def late() -> None:\n    from engine.loop import Engine"),
        ("workers/supervisor/run.py", "from workers.inference import batch"),
        ("workers/exports/own.py", "from importlib import import_module\nimport_module(f'workers.training.{1}')"),
        ("workers/kinds.py", "from engine.kinds import KINDS"),
        ("workers/celery_app.py", "import transformers"),
        ("platform/control/queue/jobs/services.py", "import torch"),
        ("platform/control/queue/jobs/services.py", "from workers.supervisor import run"),
        ("platform/control/core/ids.py", "from importlib import import_module\nimport_module('engine.loop')"),
        ("platform/control/queue/jobs/services.py", "from . import models"),
        ("sdk/slipstream/client.py", "from control.queue.jobs import models"),
        ("sdk/slipstream/client.py", "import openai"),
        ("examples/demo.py", "from engine.loop import Engine"),
        ("benchmarks/decode.py", "import django"),
    ],
)
def test_an_added_forbidden_import_is_found(tmp_path: Path, path: str, statement: str) -> None:
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_text(statement + "\n")

    found = violations(tmp_path)

    assert len(found) == 1, found
    assert found[0].startswith(path)


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("kernels/linear.py", "import torch"),
        ("engine/loop.py", "from kernels.linear import linear"),
        ("engine/server/app.py", "from engine.loop import Engine\nfrom starlette.routing import Route"),
        ("workers/inference/batch.py", "from engine.loop import Engine\nfrom workers.contracts import BatchSpec"),
        ("workers/supervisor/run.py", "import celery\nfrom control.core import ids\nfrom workers import contracts"),
        ("platform/control/queue/jobs/services.py", "from django.db import models\nfrom workers.contracts import Spec"),
        ("sdk/slipstream/client.py", "import platform\nimport httpx2"),
    ],
)
def test_allowed_imports_pass(tmp_path: Path, path: str, statement: str) -> None:
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_text(statement + "\n")

    assert violations(tmp_path) == []
