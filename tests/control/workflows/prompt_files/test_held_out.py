"""Held-out prompts are never used for training, and the same prompts of a file are held out every time."""

import gzip
import io
import json
from typing import Any

import pytest

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.prompt_files.held_out import HeldOut, normalise_held_out, split_prompts
from control.workflows.prompt_files.lines import MAX_LINE_BYTES
from control.workflows.prompt_files.validation import MAX_ROWS
from tests.control.factories import chat_row, make_base_model, make_file

pytestmark = pytest.mark.django_db


def rows(number: int) -> list[dict[str, object]]:
    return [chat_row(f"row-{n}") for n in range(number)]


def lines_of(file: File) -> list[bytes]:
    with get_storage().open(file.storage_key) as source:
        return io.BytesIO(source.read()).readlines()


def ids_of(file: File) -> list[str]:
    return [json.loads(line)["custom_id"] for line in lines_of(file) if line.strip()]


@pytest.mark.parametrize(
    ("num_rows", "requested", "expected"), [(2, None, 1), (20, None, 2), (160, None, 16), (40, 32, 32)]
)
def test_the_requested_number_of_rows_or_a_tenth_is_held_out_and_each_row_is_in_one_part(
    organization: Organization, num_rows: int, requested: int | None, expected: int
) -> None:
    split = split_prompts(make_file(organization, rows(num_rows)), held_out=requested)
    rest, held_out = split.prompts, split.held_out
    assert len(ids_of(held_out)) == expected
    assert sorted(ids_of(rest) + ids_of(held_out)) == sorted(f"row-{n}" for n in range(num_rows))
    assert (rest.organization, held_out.organization) == (organization, organization)


def test_the_same_rows_are_held_out_whatever_their_order(organization: Organization) -> None:
    first = split_prompts(make_file(organization, rows(50)), held_out=5).held_out
    second = split_prompts(make_file(organization, rows(50)[::-1]), held_out=5).held_out
    assert sorted(ids_of(first)) == sorted(ids_of(second))


def test_invalid_lines_stay_in_the_training_part_and_keep_their_line_numbers(organization: Organization) -> None:
    good = [json.dumps(row) for row in rows(30)]
    text = "\n".join([*good[:10], "{not json", *good[10:], good[0]])  # one custom_id appears twice
    split = split_prompts(make_file(organization, text), held_out=12)
    rest, held_out = split.prompts, split.held_out
    # In `rest`, a blank line replaces each held-out row, so that the other rows keep their line numbers.
    assert lines_of(rest)[10] == b"{not json\n"
    assert lines_of(rest)[31] == lines_of(rest)[0] == good[0].encode() + b"\n"
    assert len(ids_of(held_out)) == 12


@pytest.mark.parametrize(("num_rows", "requested"), [(0, None), (1, None), (32, 32)])
def test_a_file_with_too_few_rows_is_refused(organization: Organization, num_rows: int, requested: int | None) -> None:
    content = "".join(json.dumps(row) + "\n" for row in rows(num_rows)) or "\n"
    with pytest.raises(ApiError) as refusal:
        split_prompts(make_file(organization, content), held_out=requested)
    assert (refusal.value.status, refusal.value.code) == (400, "too_few_rows")


def test_held_out_rows_are_stored_in_the_format_that_workers_read(organization: Organization) -> None:
    model = make_base_model()
    assert normalise_held_out(make_file(organization, rows(3)), base_model=model, key="k/rows.jsonl") == HeldOut(3)
    with get_storage().open("k/rows.jsonl") as source:
        stored = [json.loads(line) for line in source.read().splitlines()]
    assert [row["custom_id"] for row in stored] == ["row-0", "row-1", "row-2"]
    assert {row["body"]["model"] for row in stored} == {model.name}


def test_the_error_for_an_invalid_held_out_line_has_its_line_number(organization: Organization) -> None:
    file = make_file(organization, json.dumps(chat_row()) + "\n{oops\n")
    with pytest.raises(ApiError) as refusal:
        normalise_held_out(file, base_model=make_base_model(), key="k")
    assert (refusal.value.code, refusal.value.param) == ("invalid_json_line", "held_out_file")
    assert "line 2" in refusal.value.message


def refusal_of_split(organization: Organization, content: bytes) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        split_prompts(make_file(organization, content), held_out=None)
    return refusal.value


def test_a_file_with_more_rows_than_a_batch_can_have_is_refused_before_its_end_is_read(
    organization: Organization,
) -> None:
    row = b'{"custom_id": "%d", "body": {"messages": [{"role": "user", "content": "a"}]}}\n'
    too_many = b"".join(row % number for number in range(MAX_ROWS + 1))

    assert refusal_of_split(organization, too_many + b"x" * (2 << 20)).code == "too_many_tasks"
    assert refusal_of_split(organization, b"\n" * (4 << 20)).code == "too_many_lines"


def test_a_file_that_is_too_large_is_not_read_within_a_request(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.tenants.quotas.file_work.MAX_TEXT_BYTES", 100)

    error = refusal_of_split(organization, b"x" * 101)

    assert (error.status, error.code, error.param) == (413, "file_too_large", "prompts_file")


def test_an_error_names_the_parameter_of_the_file_at_fault(organization: Organization) -> None:
    long_line = make_file(organization, b"x" * (MAX_LINE_BYTES + 1))
    compressed = make_file(organization, gzip.compress(b"{}"))
    for file, code in ((long_line, "line_too_long"), (compressed, "compressed_file")):
        with pytest.raises(ApiError) as refusal:
            normalise_held_out(file, base_model=make_base_model(), key="k")
        assert (refusal.value.code, refusal.value.param) == (code, "held_out_file")
        assert refusal.value.message.startswith("held_out_file")


def prompt_row(number: int, content: str, **body: Any) -> dict[str, Any]:
    return chat_row(f"row-{number}", content=content, **body)


def test_held_out_prompts_that_are_trained_on_are_left_out(organization: Organization) -> None:
    """Two prompts are equal even if custom_id, sampling settings or the order of the JSON keys of their rows differ."""
    training = make_file(organization, [prompt_row(n, f"prompt {n}") for n in range(10)])
    reordered = {"body": {"messages": [{"content": "prompt 4", "role": "user"}], "model": ""}, "custom_id": "x"}
    held_out = make_file(
        organization,
        [
            prompt_row(100, "prompt 3", temperature=0.5),
            prompt_row(101, "new"),
            {"method": "POST", "url": "/v1/chat/completions", **reordered},
            prompt_row(102, "prompt 3 again"),
        ],
    )

    stored = normalise_held_out(held_out, base_model=make_base_model(), key="k/rows.jsonl", training_prompts=training)

    assert (stored.num_rows, stored.num_duplicates) == (2, 2)
    with get_storage().open("k/rows.jsonl") as source:
        assert [json.loads(line)["custom_id"] for line in source.read().splitlines()] == ["row-101", "row-102"]


def test_bad_lines_of_the_training_prompts_do_not_hide_duplicates(organization: Organization) -> None:
    training = make_file(organization, "{oops\n[]\n" + json.dumps(prompt_row(1, "same")) + "\n")
    held_out = make_file(organization, [prompt_row(1, "same"), prompt_row(2, "new")])

    stored = normalise_held_out(held_out, base_model=make_base_model(), key="k/other.jsonl", training_prompts=training)

    assert (stored.num_rows, stored.num_duplicates) == (1, 1)


def test_a_held_out_file_of_training_prompts_only_is_refused(organization: Organization) -> None:
    file = make_file(organization, [prompt_row(n, f"prompt {n}") for n in range(3)])
    with pytest.raises(ApiError) as refusal:
        normalise_held_out(file, base_model=make_base_model(), key="k/other.jsonl", training_prompts=file)
    assert (refusal.value.code, refusal.value.param) == ("no_held_out_prompts", "held_out_file")
    assert "all 3 prompts" in refusal.value.message
