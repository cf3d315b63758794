"""The variables, commands, metrics and files that images, compose file, chart and runbook mention exist in the code."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.core.management import find_commands, get_commands
from pydantic import AliasChoices

from control.core.observability import metrics
from control.core.settings.config import Config
from control.operations.monitoring import queue_metrics
from control.queue.jobs.config import JobConfig
from tests.deploy.chart import ROOT

DEPLOY = sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file())
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in (*DEPLOY, ROOT / "docs" / "runbook.md")}
# These names exist only in the compose file and the chart's secret, which map them to other variables.
OWN_NAMES = {"SLIPSTREAM_VERSION", "SLIPSTREAM_OWNER_DATABASE_URL"}
ROLES = {"slipstream_owner", "slipstream_app", "slipstream_backup"}  # PostgreSQL roles, whose names look like metrics
IMAGES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))


def settings() -> set[str]:
    """Returns the variables of all settings, with the names that earlier releases gave them."""
    fields = {name: field for config in (Config, JobConfig) for name, field in config.model_fields.items()}
    aliases = [field.validation_alias for field in fields.values()]
    choices = [alias.choices for alias in aliases if isinstance(alias, AliasChoices)]
    return {f"SLIPSTREAM_{name.upper()}" for name in fields} | {str(name) for names in choices for name in names}


@pytest.mark.parametrize("name", TEXTS)
def test_every_mentioned_variable_is_a_setting(name: str) -> None:
    named = set(re.findall(r"SLIPSTREAM_[A-Z0-9_]*[A-Z0-9]", TEXTS[name]))
    assert named - settings() - OWN_NAMES == set()


def test_every_mentioned_command_of_manage_py_exists() -> None:
    manage_command = r"python[ ,\"]+manage\.py[ ,\"]+([a-z_0-9]+)"
    named = {command for text in TEXTS.values() for command in re.findall(manage_command, text)}
    assert len(named) > 5
    axes = find_spec("axes")  # an app of the production settings only; the test settings do not list its commands
    assert axes is not None
    assert axes.origin is not None
    assert named - {*get_commands(), *find_commands(str(Path(axes.origin).with_name("management")))} == set()


def test_every_mentioned_program_exists() -> None:
    modules = {
        module.split(":")[0]
        for text in TEXTS.values()
        for module in re.findall(r"(?:uvicorn[\", ]+|-A[\", ]+|python -m )([a-z_]+(?:\.[a-z_]+)+)", text)
    }
    assert {"control.asgi", "workers.celery_app"} <= modules
    assert [module for module in modules if find_spec(module) is None] == []


@pytest.mark.parametrize("name", ["docs/metrics.md", "docs/runbook.md", *(name for name in TEXTS if "/helm/" in name)])
def test_every_mentioned_metric_is_exported(name: str) -> None:
    from_collectors = {
        f"{name}{suffix}"
        for collector in metrics._registry._collector_to_names.values()
        for name in collector
        for suffix in ("", "_total")
    }
    from_queue_metrics = set(re.findall(r'"(slipstream_[a-z_]+)"', Path(queue_metrics.__file__).read_text()))
    assert len(from_queue_metrics) > 8
    mentioned = set(re.findall(r"\bslipstream_[a-z_]+[a-z]", (ROOT / name).read_text())) - ROLES
    assert mentioned - from_collectors - from_queue_metrics == set()


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_is_pinned_copies_existing_files_and_runs_without_privileges(image: Path) -> None:
    text = image.read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:3.11.14-slim-bookworm"}
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001"]
    assert "/livez" in text[text.index("HEALTHCHECK") :]
    ignore = image.with_name(f"{image.name}.dockerignore").read_text().splitlines()
    top_folders = {name.split("/")[0] for name in copied if not name.startswith("requirements")}
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == top_folders | {"requirements*.txt"}


def test_the_web_image_contains_neither_torch_nor_modules_that_need_it() -> None:
    copied = (ROOT / "deploy" / "docker" / "web.Dockerfile").read_text()
    needs_torch = r"engine|kernels|requirements\.txt|workers/(inference|training|supervisor)"
    assert not re.search(rf"COPY.*\b({needs_torch})\b", copied)
