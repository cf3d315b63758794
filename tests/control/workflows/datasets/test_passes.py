"""Promise E52 of docs/reliability.md: a child process, and not the server process, reads the rows of a large file.

A pass is a function that reads a file once. In a child process, it returns and writes the same as in this process.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import all_rows, first_rows, pilot_rows, prompt_rows, sample_rows
from control.workflows.datasets.preview import dataset_preview
from control.workflows.datasets.services import dataset_create, prompts_file_store
from control.workflows.prompt_files.child import FileRefused, Pass, run_in_child
from control.workflows.prompt_files.contamination import duplicates_of
from control.workflows.prompt_files.duplicate_passes import sketch_prompts
from control.workflows.prompt_files.held_out import endpoint_of, normalise_held_out, split_prompts
from control.workflows.prompt_files.passes import choose_held_out, divide, find_endpoint, normalise
from control.workflows.quotes.pilot import pilot_rows_store
from tests.control.factories import chat_row, make_base_model, make_file
from tests.control.workflows.datasets.hostile import GOOD, ROWS, chat
from tests.control.workflows.datasets.tokenizer import write_tokenizer

FEW_ROWS, MANY_ROWS = 500, 10_500
CHAT = "/v1/chat/completions"


def num_calls(run: Callable[[], object]) -> int:
    """Returns how many Python and C functions this thread calls during `run`."""
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return number


def dataset_of(file: File, model: BaseModel) -> Dataset:
    return Dataset(organization=file.organization, file=file, base_model=model, num_rows=FEW_ROWS)


WORK: dict[str, Callable[[File, BaseModel], object]] = {
    "a dataset": lambda file, model: dataset_create(organization=file.organization, file=file),
    "a dataset with tokens": lambda file, model: dataset_create(
        organization=file.organization, file=file, base_model=model
    ),
    "a preview": lambda file, model: dataset_preview(dataset_of(file, model), limit=20),
    "a pilot": lambda file, model: pilot_rows_store(dataset_of(file, model), quote_id="quote_1"),
    "prompts": lambda file, model: prompts_file_store(file=file, param="training_file"),
    "a split": lambda file, model: split_prompts(file, held_out=None),
    "held-out rows": lambda file, model: normalise_held_out(
        file,
        base_model=model,
        key="passes/rows",
        training_prompts=make_file(file.organization, [chat_row(content="other")]),
    ),
    "training prompts": lambda file, model: normalise_held_out(
        make_file(file.organization, [chat_row(content="other")]),
        base_model=model,
        key="passes/rows",
        training_prompts=file,
    ),
    "duplicates": lambda file, model: duplicates_of(file, param="prompts_file"),
    "an endpoint": lambda file, model: endpoint_of(file),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", WORK)
def test_the_server_process_does_not_do_more_work_for_a_file_with_more_rows(
    organization: Organization, tmp_path: Path, name: str
) -> None:
    write_tokenizer(tmp_path)
    model = make_base_model("tiny", organization)
    model.path = str(tmp_path)
    few, many = (
        make_file(organization, [chat_row(f"row-{n}", content=f"{n}") for n in range(number)])
        for number in (FEW_ROWS, MANY_ROWS)
    )
    WORK[name](few, model)  # loads code

    more = num_calls(lambda: WORK[name](many, model)) - num_calls(lambda: WORK[name](few, model))

    assert more < (MANY_ROWS - FEW_ROWS) / 10


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "line"), [("a dataset", b"{}\n"), ("a preview", b"{}\n"), ("an endpoint", b" \n")])
def test_the_server_process_does_not_do_more_work_for_more_invalid_or_blank_lines(
    organization: Organization, tmp_path: Path, name: str, line: bytes
) -> None:
    write_tokenizer(tmp_path)
    model = make_base_model("tiny", organization)
    model.path = str(tmp_path)
    few, many = (make_file(organization, line * number) for number in (5_000, 49_000))
    WORK[name](few, model)  # loads code

    more = num_calls(lambda: WORK[name](many, model)) - num_calls(lambda: WORK[name](few, model))

    assert more < 44_000 / 10


PASSES: list[tuple[Pass, dict[str, Any]]] = [
    (all_rows, {}),
    (prompt_rows, {}),
    (pilot_rows, {"every": 2}),
    (sample_rows, {"every": 2}),
    (first_rows, {"limit": 2}),
    (find_endpoint, {}),
    (choose_held_out, {"held_out": None}),
    (sketch_prompts, {}),
    (normalise, {"endpoint": CHAT, "model": "tiny", "digests_path": None}),
]
PIECES = st.one_of(
    st.sampled_from([row for _, row, _ in ROWS]),
    st.sampled_from([GOOD, chat(custom_id="ä"), chat(), b"", b" \t", b"\r", b"\xef\xbb\xbf", b"\x1f\x8b"]),
    st.sampled_from(["a", "b", 7, "\u0000\U0001f600"]).map(lambda name: json.dumps(chat_row(str(name))).encode()),
    st.just(b'{"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "x"}}'),
    st.binary(max_size=12),
)
FILES = st.lists(PIECES, max_size=8).flatmap(lambda rows: st.sampled_from([b"\n".join(rows), b"\n".join(rows) + b"\n"]))


def outcome(run: Callable[..., dict[str, Any]], one_pass: Pass, options: dict[str, Any]) -> tuple[Any, bytes]:
    """Runs a pass over a file. Returns: the result of the pass or the reason of its refusal, and the bytes it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        if one_pass not in (all_rows, find_endpoint):
            options = {**options, "path": str(path)}
        try:
            found: Any = run(one_pass, options)
        except FileRefused as refusal:
            found = refusal.args
        return found, path.read_bytes() if path.exists() else b""


@settings(max_examples=25, deadline=None)
@given(FILES, st.sampled_from(PASSES))
def test_a_pass_returns_and_writes_the_same_in_a_child_process_as_in_this_process(
    content: bytes, case: tuple[Pass, dict[str, Any]]
) -> None:
    def in_child(one_pass: Pass, options: dict[str, Any]) -> dict[str, Any]:
        return run_in_child(BytesIO(content), one_pass, cpu_seconds=60, memory_bytes=192 << 20, **options)

    expected = outcome(lambda one_pass, options: one_pass(BytesIO(content), **options), *case)

    assert outcome(in_child, *case) == expected


def test_a_child_process_divides_a_file_as_this_process_does(tmp_path: Path) -> None:
    content = b"\n".join([*(row for _, row, _ in ROWS if len(row) < 1 << 20), GOOD, b"", chat()])
    (tmp_path / "lines").write_text("[1, 3, 40]")
    parts = []
    for number in range(2):
        paths = {name: str(tmp_path / f"{name}{number}") for name in ("rest_path", "held_out_path")}
        options = {"lines_path": str(tmp_path / "lines"), **paths}
        if number:
            run_in_child(BytesIO(content), divide, cpu_seconds=60, memory_bytes=192 << 20, **options)
        else:
            divide(BytesIO(content), **options)
        parts.append([Path(path).read_bytes() for path in paths.values()])

    assert parts[0] == parts[1]
    assert parts[0][1].splitlines()[2] == ROWS[2][1]
