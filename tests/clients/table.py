"""The table of docs/clients.md, from the reports of `tests/clients/test_clients.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.clients.environments import CLIENTS, Client
from tests.clients.script_docs import read_script
from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "clients.md"
BEGIN = "<!-- table: begin (written by `make test-clients`) -->\n"
END = "<!-- table: end -->\n"


@dataclass(frozen=True, slots=True)
class Result:
    status: Literal["passed", "failed", "skipped"]
    reason: str = ""  # why the check was skipped


class Recorder:
    """A plugin of pytest that keeps the result of each check by the names of its client and its function."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], Result] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = dict(report.user_properties).get("case")
        if case is None or (report.when != "call" and report.passed):
            return
        assert isinstance(case, tuple)
        self.results[case] = Result(report.outcome, _reason(report))


def table(results: Mapping[tuple[str, str], Result]) -> str:
    """Returns a table in Markdown with one row per client."""
    lines = ["| client | checked | result | settings |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(_row(client, results))} |" for client in CLIENTS]
    return "\n".join(lines) + "\n"


def write(results: Mapping[tuple[str, str], Result], page: Path = PAGE) -> None:
    """Replaces the table of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}{table(results)}{END}{after}", encoding="utf-8")


def _row(client: Client, results: Mapping[tuple[str, str], Result]) -> tuple[str, str, str, str]:
    script = read_script(client)
    of_client = {check: results[client.name, check] for check in script.checks if (client.name, check) in results}
    name = f"{client.name} {client.version}"
    return name, "; ".join(script.checks.values()), _summary(of_client, script.checks), script.settings


def _summary(results: Mapping[str, Result], checks: Mapping[str, str]) -> str:
    failed = [checks[check] for check, result in results.items() if result.status == "failed"]
    lacking = [text for check, text in checks.items() if check not in results]
    lacking += sorted({result.reason for result in results.values() if result.status == "skipped"})
    parts = [f"{word}: {'; '.join(texts)}" for word, texts in (("failed", failed), ("not run", lacking)) if texts]
    return "; ".join(parts) or f"all {len(checks)} passed"


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
