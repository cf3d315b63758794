"""Secrets and personal data in files are counted, replaced by placeholders or refused, as the request says."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.prompt_files import file_pass as file_pass_module
from control.workflows.prompt_files.child import FileRefused
from control.workflows.prompt_files.file_pass import SMALL_BYTES
from control.workflows.prompt_files.sensitive import OnSensitive, file_scan
from control.workflows.prompt_files.sensitive_passes import MAX_LINES, scan_rows
from tests.control.factories import chat_row, make_file

ANN, BOB, CARD = "ann@example.com", "bob@example.org", "4111 1111 1111 1111"
VALUES = (ANN, BOB, CARD, "+1 650-253-0000", "AKIA" + "Q" * 16)
TEXTS = st.lists(st.sampled_from((*VALUES, "hello", "é", '"', "\n")), max_size=5).map(", ".join)


def redacted(content: bytes, folder: Path) -> tuple[dict[str, Any], bytes]:
    path = folder / "redacted"
    report = scan_rows(io.BytesIO(content), path=str(path))
    return report, path.read_bytes()


def content_of(texts: list[str], **members: Any) -> bytes:
    rows = (chat_row(f"row-{number}", content=text, **members) for number, text in enumerate(texts))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, max_size=8))
def test_redaction_removes_every_sensitive_value_and_nothing_else_and_a_second_scan_finds_none(
    tmp_path: Path, texts: list[str]
) -> None:
    content = content_of(texts)
    report, copy = redacted(content, tmp_path)

    assert report["num_found"] == sum(text.count(value) for text in texts for value in VALUES)
    assert scan_rows(io.BytesIO(copy))["num_found"] == 0
    assert not any(value.encode() in copy for value in VALUES)
    for before, after, text in zip(content.splitlines(), copy.splitlines(), texts, strict=True):
        if not any(value in text for value in VALUES):
            assert after == before  # byte for byte
        old, new = json.loads(before), json.loads(after)
        assert new.keys() == old.keys()
        assert new["custom_id"] == old["custom_id"]


def test_an_object_that_has_the_name_of_a_keyword_is_redacted(tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"url": {"type": "string", "description": f"ask {ANN}"}}}
    content = content_of(["a"], tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])

    report, copy = redacted(content, tmp_path)

    assert report["num_found"] == 1
    assert ANN.encode() not in copy
    assert b'"type":"string","description":"ask <EMAIL_1>"' in copy


def test_a_value_has_the_same_placeholder_in_the_whole_file(tmp_path: Path) -> None:
    texts = [f"from {ANN} to {BOB}", "nothing", f"from {BOB}: {CARD}"]
    report, copy = redacted(content_of(texts), tmp_path)
    lines = [json.loads(line)["body"]["messages"][0]["content"] for line in copy.splitlines()]
    assert lines == ["from <EMAIL_1> to <EMAIL_2>", "nothing", "from <EMAIL_2>: <CREDIT_CARD_1>"]
    assert report == {
        "num_rows": 2,
        "num_found": 4,
        "num_unread_lines": 0,
        "kinds": [
            {"kind": "credit_card", "num_found": 1, "num_rows": 1, "lines": [3]},
            {"kind": "email", "num_found": 3, "num_rows": 2, "lines": [1, 3]},
        ],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The password and the mail address begin at the same character.
        ("see postgres://ann:hunter2@db.example.com/x", "see postgres://ann:<EMAIL_1>/x"),
        # The password begins before the mail address and ends within the address.
        ("see postgres://u:p~ann@example.com/x", "see postgres://u:<PASSWORD_IN_URL_1>/x"),
    ],
)
def test_findings_that_overlap_are_replaced_together(text: str, expected: str, tmp_path: Path) -> None:
    _, copy = redacted(content_of([text]), tmp_path)
    assert json.loads(copy)["body"]["messages"][0]["content"] == expected


def test_blank_lines_keep_their_places_and_a_report_has_the_first_lines(tmp_path: Path) -> None:
    content = b"\n" + content_of([ANN] * 20)
    report, copy = redacted(content, tmp_path)
    assert report["kinds"][0]["lines"] == list(range(2, 2 + MAX_LINES))
    assert [bool(line) for line in copy.splitlines()] == [bool(line) for line in content.splitlines()]


def test_keywords_of_the_api_stay_and_texts_at_any_depth_do_not(tmp_path: Path) -> None:
    row = {"url": ANN, "role": ANN, "body": {"tools": [{"function": {"description": ANN, "n": 1.5e300}}]}}
    _, copy = redacted(json.dumps(row).encode(), tmp_path)
    tools = [{"function": {"description": "<EMAIL_1>", "n": 1.5e300}}]
    assert json.loads(copy) == {"url": ANN, "role": ANN, "body": {"tools": tools}}


def test_lines_that_cannot_be_read_are_counted_and_a_file_with_such_lines_is_not_redacted(tmp_path: Path) -> None:
    content = b"not json " + ANN.encode() + b"\n" + content_of([ANN])
    assert scan_rows(io.BytesIO(content))["num_unread_lines"] == 1
    with pytest.raises(FileRefused, match="line 1"):
        redacted(content, tmp_path)


@pytest.mark.django_db
def test_a_report_never_has_the_values_and_a_refusal_names_kinds_and_lines(organization: Organization) -> None:
    file = make_file(organization, content_of(["hello", f"{ANN} and {CARD}", ANN]))
    report = file_scan(file, OnSensitive.WARN, param="prompts_file").report
    assert not any(value in json.dumps(report) for value in VALUES)
    with pytest.raises(ApiError) as refusal:
        file_scan(file, OnSensitive.REFUSE, param="prompts_file")
    error = refusal.value
    assert (error.status, error.code, error.param) == (400, "sensitive_data", "prompts_file")
    expected = "in 2 rows: 1 credit_card (first on line 2), 2 email (first on line 2)"
    assert error.message.endswith(expected)
    assert not any(value in error.message for value in VALUES)


@pytest.mark.django_db
def test_a_large_file_is_redacted_in_a_child_process_and_a_clean_file_is_not_copied(organization: Organization) -> None:
    file = make_file(organization, content_of([f"{n} {ANN}" for n in range(200)]))
    assert file.size_bytes > SMALL_BYTES
    scanned = file_scan(file, OnSensitive.REDACT, param="file_id")
    assert scanned.new_files == (scanned.file,)
    assert scanned.report["original_file_id"] == file.pk
    with get_storage().open(scanned.file.storage_key) as source:
        assert source.read() == content_of([f"{n} <EMAIL_1>" for n in range(200)]).replace(b'": ', b'":').replace(
            b", ", b","
        )
    clean = make_file(organization, content_of(["hello"]))
    assert file_scan(clean, OnSensitive.REDACT, param="file_id").file == clean
    assert File.objects.count() == 2


@pytest.mark.django_db
def test_a_file_that_takes_too_long_is_refused_when_its_time_is_over(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pass_module, "CPU_SECONDS", 1)
    file = make_file(organization, content_of(["+1 650-253-0000 " * 50_000] * 4))
    with pytest.raises(ApiError) as refusal:
        file_scan(file, OnSensitive.WARN, param="file_id")
    assert (refusal.value.status, refusal.value.code) == (400, "file_too_complex")
