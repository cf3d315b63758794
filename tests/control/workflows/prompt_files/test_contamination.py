"""Training prompts that are like held-out prompts are counted, dropped or refused, as the request says."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.prompt_files.contamination import OnContamination, contamination_of, duplicates_of
from control.workflows.prompt_files.duplicate_passes import compare_prompts, sketch_prompts
from control.workflows.prompt_files.held_out import HeldOut, normalise_held_out, split_prompts
from control.workflows.prompt_files.passes import without_lines
from tests.control.factories import chat_row, make_base_model, make_file

LONG = "please summarise the following report about the water levels of the lake in the last ten years for the board "
TEXTS = st.sampled_from(
    [*(f"question {n}" for n in range(6)), *(LONG + end for end in ("now", "today", " now")), LONG * 2]
)


def rows_of(texts: Sequence[str], start: int = 0) -> list[dict[str, Any]]:
    return [chat_row(f"row-{number}", content=text) for number, text in enumerate(texts, start)]


def content_of(texts: Sequence[str]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows_of(texts))


def texts_in(file: File) -> list[str]:
    with get_storage().open(file.storage_key) as source:
        lines = [json.loads(line) for line in source.read().splitlines() if line.strip()]
    return [line["body"]["messages"][0]["content"] for line in lines]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(training=st.lists(TEXTS, max_size=8), held_out=st.lists(TEXTS, max_size=4))
def test_dropping_leaves_no_contaminated_row_and_only_drops_contaminated_rows(
    tmp_path: Path, training: list[str], held_out: list[str]
) -> None:
    paths = {name: str(tmp_path / name) for name in ("others_path", "lines_path", "digests_path")}
    sketch_prompts(io.BytesIO(content_of(held_out)), path=paths["others_path"])
    report = compare_prompts(io.BytesIO(content_of(training)), **paths)
    lines = json.loads(Path(paths["lines_path"]).read_text())
    kept = tmp_path / "kept"
    without_lines(io.BytesIO(content_of(training)), lines_path=paths["lines_path"], path=str(kept))

    again = compare_prompts(io.BytesIO(kept.read_bytes()), **paths)

    assert (again["exact"]["num_rows"], again["near"]["num_rows"]) == (0, 0)
    assert again["num_prompts"] == len(training) - len(lines)
    assert report["exact"]["num_rows"] + report["near"]["num_rows"] == len(lines)
    for number in lines:  # each dropped row is contaminated even without the other rows
        alone = compare_prompts(io.BytesIO(content_of([training[number - 1]])), **paths)
        assert alone["exact"]["num_rows"] + alone["near"]["num_rows"] == 1


@pytest.fixture
def training(organization: Organization) -> File:
    return make_file(organization, rows_of(["first", LONG + "now", "same  text", LONG + "then", "other"]))


@pytest.fixture
def held_out(organization: Organization) -> File:
    return make_file(organization, rows_of(["same text", "new", LONG + "today"], start=50))


def normalised(training: File, held_out: File, policy: OnContamination) -> HeldOut:
    return normalise_held_out(
        held_out,
        base_model=make_base_model(),
        key=f"k/{policy}.jsonl",
        training_prompts=training,
        on_contamination=policy,
    )


EXACT = {"num_rows": 1, "examples": [{"line": 3, "other_line": 1}]}
NEAR = {"num_rows": 2, "examples": [{"line": 2, "other_line": 3}, {"line": 4, "other_line": 3}]}


@pytest.mark.django_db
def test_a_warning_has_the_counts_and_lines_and_leaves_exact_duplicates_out_of_the_evaluation(
    training: File, held_out: File
) -> None:
    stored = normalised(training, held_out, OnContamination.WARN)
    assert stored.contamination == {"policy": "warn", "num_dropped": 0, "exact": EXACT, "near": NEAR}
    assert (stored.num_rows, stored.num_duplicates, stored.cleaned_prompts) == (2, 1, None)


@pytest.mark.django_db
def test_dropping_keeps_all_held_out_rows_and_the_line_numbers_of_the_training_file(
    training: File, held_out: File
) -> None:
    stored = normalised(training, held_out, OnContamination.DROP)
    assert stored.contamination == {"policy": "drop", "num_dropped": 3, "exact": EXACT, "near": NEAR}
    assert (stored.num_rows, stored.num_duplicates) == (3, 0)
    assert stored.cleaned_prompts is not None
    assert texts_in(stored.cleaned_prompts) == ["first", "other"]
    with get_storage().open(stored.cleaned_prompts.storage_key) as source:
        assert [bool(line.strip()) for line in source.read().splitlines()] == [True, False, False, False, True]


@pytest.mark.django_db
def test_refusing_names_the_first_pair_of_lines_and_files_without_duplicates_pass(
    organization: Organization, training: File, held_out: File
) -> None:
    with pytest.raises(ApiError) as refusal:
        normalised(training, held_out, OnContamination.REFUSE)
    error = refusal.value
    assert (error.status, error.code, error.param) == (400, "contaminated_held_out", "held_out_file")
    assert "3 training prompts" in error.message
    assert "line 3 is like line 1" in error.message
    clean = make_file(organization, rows_of(["new", "newer"]))
    assert normalised(training, clean, OnContamination.REFUSE).num_rows == 2


@pytest.mark.django_db
def test_dropping_every_training_prompt_is_refused(organization: Organization, training: File) -> None:
    reordered = make_file(organization, rows_of(["other", "same text", LONG + "now", "first"]))
    with pytest.raises(ApiError) as refusal:
        normalised(training, reordered, OnContamination.DROP)
    assert (refusal.value.status, refusal.value.code, refusal.value.param) == (
        400, "no_training_prompts", "prompts_file",
    )  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("policy", list(OnContamination))
def test_the_rows_of_one_file_are_separated_under_each_policy(
    organization: Organization, policy: OnContamination
) -> None:
    file = make_file(organization, rows_of([f"question {number % 12}" for number in range(24)]))
    if policy == OnContamination.REFUSE:
        with pytest.raises(ApiError) as refusal:
            split_prompts(file, held_out=4, on_contamination=policy)
        assert (refusal.value.code, refusal.value.param) == ("contaminated_held_out", "prompts_file")
        return
    split = split_prompts(file, held_out=4, on_contamination=policy)
    prompts, held_out = texts_in(split.prompts), texts_in(split.held_out)
    num_twins = split.contamination["exact"]["num_rows"]
    assert len(held_out) == 4
    if policy == OnContamination.WARN:
        assert (len(prompts), num_twins) == (20, sum(text in held_out for text in prompts))
        assert num_twins > 0
    else:
        assert not set(prompts) & set(held_out)
        assert split.contamination["num_dropped"] == num_twins == 20 - len(prompts) > 0


@pytest.mark.django_db
def test_the_duplicates_of_a_file_are_counted_in_a_child_process_and_its_bad_lines_ignored(
    organization: Organization,
) -> None:
    texts = [f"{LONG} {number} {' '.join(map(str, range(number, number + 9)))}" for number in range(200)]
    content = b"not json\n" + content_of([*texts, texts[3]])
    assert len(content) > 8 << 10, "the file must be too large to be read in this process"
    report = duplicates_of(make_file(organization, content), param="prompts_file")
    assert report is not None
    assert report["exact"] == {"num_rows": 1, "examples": [{"line": 202, "other_line": 5}]}


@pytest.mark.django_db
def test_files_are_compared_and_an_unreadable_file_has_no_report(
    organization: Organization, training: File, held_out: File
) -> None:
    assert contamination_of(training, held_out, param="prompts_file") == {"exact": EXACT, "near": NEAR}
    assert duplicates_of(make_file(organization, b"\x1f\x8bzip"), param="prompts_file") is None
