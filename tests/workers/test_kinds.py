"""Every kind of speculator has all its parts: trainer, hyperparameters, exports and documentation."""

import re

import pytest

from engine.kinds import KINDS
from tests.source_tree import ROOT
from workers.exports.artifact import artifact_kind
from workers.exports.formats import FORMATS, formats_of
from workers.hyperparameters.kinds import hyperparameters_class
from workers.hyperparameters.loop import LoopParameters
from workers.kinds import TRAINED_KINDS, class_prefix
from workers.training.methods import trainer_class


def test_the_kinds_that_have_a_trainer_in_the_engine_are_the_trained_kinds() -> None:
    assert {name for name, kind in KINDS.items() if kind.trainer is not None} == set(TRAINED_KINDS)


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_every_trained_kind_has_hyperparameters_a_trainer_an_artifact_check_and_export_formats(kind: str) -> None:
    assert isinstance(hyperparameters_class(kind)().loop, LoopParameters)
    assert callable(trainer_class(kind).prepare)
    assert callable(artifact_kind(kind).check)
    assert formats_of(kind)


def test_the_export_formats_cover_exactly_the_trained_kinds() -> None:
    assert {kind for form in FORMATS.values() for kind in form.kinds} == set(TRAINED_KINDS)


def test_each_trained_kind_has_a_file_for_exports_and_a_folder_for_training() -> None:
    exports = {path.stem for path in (ROOT / "workers" / "exports" / "kinds").glob("[!_]*.py")}
    trainers = {path.parent.name for path in (ROOT / "workers" / "training").glob("*/method.py")}

    assert exports == trainers == set(TRAINED_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_design_page_has_a_row_for_every_kind(kind: str) -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert kind == "none" or any(f"`{kind}`" in row for row in rows)


def test_the_class_prefix_of_a_kind_is_its_name_in_camel_case() -> None:
    assert class_prefix("turbo_lora") == "TurboLora"
