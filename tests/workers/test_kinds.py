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


def test_the_engines_kinds_with_a_trainer_are_the_trained_kinds() -> None:
    assert {name for name, kind in KINDS.items() if kind.trainer is not None} == set(TRAINED_KINDS)


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_every_kind_has_its_parts(kind: str) -> None:
    assert isinstance(hyperparameters_class(kind)().loop, LoopParameters)
    assert callable(trainer_class(kind).prepare)
    assert callable(artifact_kind(kind).check)
    assert formats_of(kind)


def test_the_kinds_of_all_formats_are_the_trained_kinds() -> None:
    assert {kind for form in FORMATS.values() for kind in form.kinds} == set(TRAINED_KINDS)


def test_the_files_for_exports_and_training_belong_to_trained_kinds() -> None:
    exports = {path.stem for path in (ROOT / "workers" / "exports" / "kinds").glob("[!_]*.py")}
    trainers = {path.parent.name for path in (ROOT / "workers" / "training").glob("*/method.py")}

    assert exports == trainers == set(TRAINED_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_design_page_has_a_row_for_every_kind(kind: str) -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert kind == "none" or any(f"`{kind}`" in row for row in rows)


def test_the_class_prefix_of_a_kind_is_its_name_in_camel_case() -> None:
    assert class_prefix("turbo_lora") == "TurboLora"
