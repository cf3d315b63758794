"""The benchmark `passes`, which times forward passes by rows and context, run with a tiny random model."""

from pathlib import Path

import pytest

from benchmarks import passes
from engine.load import load_model
from engine.models.base import Rows
from tests.tiny_model import make_tiny_model


def test_the_rows_of_a_pass_are_a_chain_of_drafts_after_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, measured = load_model(make_tiny_model(tmp_path)), []
    forward = model.forward

    def recorded(rows: Rows, *args: object) -> object:
        attended = rows.rows.attention
        measured.append((attended.prefix_lens.tolist(), attended.path_lens.tolist(), attended.slots(-1).tolist()))
        return forward(rows, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "forward", recorded)

    assert len(passes.pass_seconds(model, [1, 3], 20, repeats=2)) == 2

    one, three = ([21], [0], [*range(21)]), ([21, 21, 21], [0, 1, 2], [*range(23)])
    assert measured == [one, three] * 3, "one unmeasured pass of each size, then two measured ones"


def test_the_table_has_a_line_for_each_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(make_tiny_model(tmp_path))

    assert passes.main(["--model", folder, "--rows", "1,4", "--contexts", "0,30", "--repeats", "1"]) == 0
    assert passes.main(["--model", str(tmp_path / "missing")]) == 2

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["context", "1", "rows", "4", "rows"]
    assert [line.split()[0] for line in lines[1:]] == ["0", "30"]
    assert all(line.count(" ms (") == 2 and "(1.00)" in line for line in lines[1:])
