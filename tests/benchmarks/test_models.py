"""The benchmark of model families and weight formats passes for correct models and reports every error of others."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from benchmarks.models import __main__ as models
from benchmarks.models.cases import FAMILIES, Case, cases
from benchmarks.models.checks import CheckFailed, equal_answers, parity
from engine.load import load_model
from tests.tiny_model import make_tiny_model

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def case_of(model_type: str, form: str) -> Case:
    (found,) = (case for case in cases() if (case.family.model_type, case.format) == (model_type, form))
    return found


@pytest.mark.parametrize(("model_type", "form"), [("mixtral", "as published"), ("qwen2", "int4")])
def test_a_correct_model_passes_all_checks(tmp_path: Path, model_type: str, form: str) -> None:
    cells, passed = models.row_of(case_of(model_type, form), tmp_path)
    assert passed, cells
    assert len(cells) == len(models.COLUMNS)
    assert int(cells[models.COLUMNS.index("drafters")].split()[0]) >= 10


def test_each_family_and_format_has_one_case() -> None:
    names = [(case.family.model_type, case.format) for case in cases()]
    assert len(set(names)) == len(names)
    assert {name for name, _ in names} == {family.model_type for family in FAMILIES}


def test_a_model_that_does_not_load_shows_its_error_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(folder: Path) -> tuple[Path, Path]:
        make_tiny_model(folder, "llama")
        (folder / "model.safetensors").write_bytes(b"")
        return folder, folder

    monkeypatch.setattr(models, "cases", lambda: [replace(case_of("llama", "as published"), write=write)])
    monkeypatch.setattr("sys.argv", ["models"])
    assert models.main() == 1
    shown = capsys.readouterr().out
    assert "ModelNotLoadable" in shown
    assert "failed: llama, as published" in shown


def test_logits_and_answers_that_differ_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = make_tiny_model(tmp_path / "a"), make_tiny_model(tmp_path / "b", seed=2)
    with pytest.raises(CheckFailed, match="logits differ by"):
        parity(folder, other, "auto")
    model = load_model(folder)
    plain = model.logits

    def logits(hidden: Tensor) -> Tensor:
        return plain(hidden) * (1 + 1e-6 * hidden.shape[0])  # depends on the number of rows

    monkeypatch.setattr(model, "logits", logits)
    with pytest.raises(CheckFailed, match=r"answers with .* differ"):
        equal_answers(model, tmp_path / "draft")


def test_the_command_fails_if_no_model_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["models", "--only", "no such model"])
    assert models.main() == 1
