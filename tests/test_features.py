"""docs/features.md: every row has a verdict with its evidence, every named test exists, and the counts are right."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.named_tests import NAMED, missing_tests
from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
VERDICTS = ("yes", "not yet", "no")
NOT_ROWS = re.compile(r"\| \|.*|\|[-|]+")  # headers of the tables, and the lines below them


class Row(NamedTuple):
    number: str
    feature: str
    verdict: str
    evidence: str


def rows(page: str) -> Iterator[Row]:
    _, _, tables = page.partition("\n## ")  # the table above the first section explains the verdicts
    for line in tables.splitlines():
        if line.startswith("|") and not NOT_ROWS.fullmatch(line):
            yield Row(*line.strip("| ").split(" | "))


def faults(page: str) -> list[str]:
    """Returns what is wrong with the rows of the page."""
    found = [f"{test} does not exist" for test in missing_tests(page)]
    for row in rows(page):
        if row.verdict not in VERDICTS:
            found.append(f"{row.number}: unknown verdict {row.verdict!r}")
        elif row.verdict == "yes" and not NAMED.search(row.evidence):
            found.append(f"{row.number}: yes, but no test is named")
        elif row.verdict != "yes" and len(NAMED.sub("", row.evidence).split()) < 4:
            found.append(f"{row.number}: {row.verdict}, but no reason is given")
    repeated = [number for number, count in Counter(row.number for row in rows(page)).items() if count > 1]
    return found + [f"{number}: the number is not unique" for number in repeated]


def sentence_with_counts(page: str) -> str:
    counts = Counter(row.verdict for row in rows(page))
    return (
        f"Of {counts.total()} rows, {counts['yes']} say `yes`, {counts['not yet']} `not yet` and {counts['no']} `no`."
    )


def test_every_row_has_a_verdict_with_an_existing_test_or_a_reason() -> None:
    assert faults(PAGE) == []


def test_the_page_begins_with_the_counts_of_its_verdicts() -> None:
    introduction = " ".join(PAGE.partition("\n|")[0].split())

    assert sentence_with_counts(PAGE) in introduction


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| 1 | a | yes | `tests/test_style.py::test_gone` |", "tests/test_style.py::test_gone does not exist"),
        ("| 1 | a | yes | `tests/test_gone.py::test_a` |", "tests/test_gone.py::test_a does not exist"),
        ("| 1 | a | part | half of it exists already |", "1: unknown verdict 'part'"),
        ("| 1 | a | yes | one can see it |", "1: yes, but no test is named"),
        ("| 1 | a | not yet | missing |", "1: not yet, but no reason is given"),
    ],
)
def test_a_row_without_evidence_is_reported(row: str, fault: str) -> None:
    assert faults(f"# Features\n\n## Section\n\n| | feature | | |\n|---|---|---|---|\n{row}\n") == [fault]
