"""The packages that a file needs are found in the file and in the project's files that it imports."""

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
def test_only_imports_at_the_top_are_needed(tmp_path: Path, source: str, lacking: set[str]) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(source)
    assert missing(path) == lacking


def test_requirements_of_imported_files_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("from engine.grammars.compiler import GrammarCompiler")
    monkeypatch.setattr(module, "_is_there", lambda package: package not in ("xgrammar", "torch"))
    assert "xgrammar" in missing(path)
