"""An evaluation's report as a table for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_MIN_RATE = 0.1  # lower rates are not shown; suffix decoding drafts many positions of which few are ever accepted


def report_table(report: Mapping[str, Any]) -> Table:
    """Returns a table with the main figures and a row for each measured concurrency."""
    table = Table(
        title=f"{report.get('drafter')} on {report.get('model')}, {report.get('device')}", title_justify="left"
    )
    for heading in ("held-out prompts", "plain", "speculative", "gain"):
        table.add_column(heading, justify="left" if heading == "held-out prompts" else "right")
    total = report["prompts_held_out"]
    table.add_row("equal answers, token for token", f"{total}", f"{report['outputs_equal']}", "")
    table.add_row("acceptance length (tokens a pass)", "1.00", f"{report['acceptance_length']:.2f}", "")
    rates = " ".join(f"{rate:.2f}" for rate in report["acceptance_rate_per_position"] if rate >= _MIN_RATE)
    table.add_row("accepted at draft position 1, 2, ...", "", rates, "")
    table.add_section()
    for row in _concurrencies(report):
        table.add_row(
            f"tokens per second, {row['concurrency']} at a time",
            f"{row['tokens_per_second_plain']:.1f}",
            f"{row['tokens_per_second_speculative']:.1f}",
            f"{row['speedup']:.2f}x",
        )
    return table


def _concurrencies(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(report.get("concurrencies") or [{**report, "concurrency": 1}])


SUMMARY_KEYS = (
    "prompts_held_out",
    "outputs_equal",
    "acceptance_length",
    "tokens_per_second_plain",
    "tokens_per_second_speculative",
    "speedup",
    "model",
    "drafter",
    "device",
    "dtype",
)


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in SUMMARY_KEYS if key in report}
