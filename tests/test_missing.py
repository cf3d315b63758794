"""`missing` finds packages that are not installed and that a file needs, directly or through other project files."""

from pathlib import Path

import pytest

from tests import missing as module
from tests.missing import missing


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        ("import json\nimport torch.nn\nfrom pytest import mark", set()),
        ("import no_such_package.part", {"no_such_package"}),
        ("from no_such_package import part", {"no_such_package"}),
        ("def late():\n    import no_such_package", set()),
        ("from engine.load import load_model\nfrom tests import tiny_model", set()),
    ],
)
def test_only_missing_packages_imported_at_the_top_are_found(tmp_path: Path, source: str, lacking: set[str]) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(source)
    assert missing(path) == lacking


def test_missing_packages_of_imported_project_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("from engine.grammars.compiler import GrammarCompiler")
    monkeypatch.setattr(module, "_is_installed", lambda package: package not in ("xgrammar", "torch"))
    assert "xgrammar" in missing(path)
