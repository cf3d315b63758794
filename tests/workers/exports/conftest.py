"""Fixtures: a target model, a function that exports a new speculator for the target, and a function that imports
one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.load import load_model
from engine.models.base import Model
from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import write_speculator
from workers.exports.formats import export_speculator, import_speculator
from workers.exports.target import Target


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Model:
    return load_model(model_dir)


@pytest.fixture
def target(model_dir: Path) -> Target:
    return Target.read(model_dir, name="a/model")


@pytest.fixture
def exported(tmp_path: Path, model_dir: Path, target: Target) -> Callable[[str, str], Path]:
    def make(kind: str, form: str) -> Path:
        out = tmp_path / "exported"
        out.mkdir()
        export_speculator(write_speculator(kind, tmp_path / "own", model_dir), form, target, out)
        return out

    return make


@pytest.fixture
def import_folder(tmp_path: Path, target: Target) -> Callable[..., str]:
    def run(folder: Path, form: str) -> str:
        out = tmp_path / "imported"
        out.mkdir()
        return import_speculator(folder, form, target, out, provenance={"archive_sha256": "0" * 64})

    return run
