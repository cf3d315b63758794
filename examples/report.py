"""Shows the report of an evaluation as a table on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_MIN_RATE = 0.1  # lower rates are not shown; suffix decoding drafts many positions of which few are ever accepted


def report_table(report: Mapping[str, Any]) -> Table:
    """Returns a table of plain decoding, suffix decoding alone and the speculator, with a row for each concurrency."""
    table = Table(
        title=f"{report.get('drafter')} on {report.get('model')}, {report.get('device')}", title_justify="left"
    )
    for heading in ("held-out prompts", "plain", "suffix", "speculator", "over suffix"):
        table.add_column(heading, justify="left" if heading == "held-out prompts" else "right")
    total = report["prompts_held_out"]
    table.add_row("equal answers, token for token", f"{total}", "", f"{report['outputs_equal']}")
    lengths = (1.0, report["acceptance_length_suffix"], report["acceptance_length"])
    table.add_row("acceptance length (tokens a pass)", *(f"{length:.2f}" for length in lengths))
    rates = " ".join(f"{rate:.2f}" for rate in report["acceptance_rate_per_position"] if rate >= _MIN_RATE)
    table.add_row("accepted at draft position 1, 2, ...", "", "", rates)
    table.add_section()
    for row in _concurrencies(report):
        table.add_row(
            f"tokens per second, {row['concurrency']} at a time",
            f"{row['tokens_per_second_plain']:.1f}",
            f"{row['tokens_per_second_suffix']:.1f} ({row['speedup_suffix']:.2f}x)",
            f"{row['tokens_per_second_speculative']:.1f} ({row['speedup']:.2f}x)",
            f"{row['speedup_over_suffix']:.2f}x",
        )
    return table


def _concurrencies(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(report.get("concurrencies") or [{**report, "concurrency": 1}])


SUMMARY_KEYS = (
    "prompts_held_out",
    "outputs_equal",
    "acceptance_length",
    "tokens_per_second_plain",
    "tokens_per_second_suffix",
    "tokens_per_second_speculative",
    "speedup",
    "speedup_suffix",
    "speedup_over_suffix",
    "model",
    "drafter",
    "device",
    "dtype",
)


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in SUMMARY_KEYS if key in report}
