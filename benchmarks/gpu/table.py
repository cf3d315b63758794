"""Prints the results files of a GPU as tables.

    python -m benchmarks.gpu.table --short benchmarks/results/nvidia-h100-80gb-hbm3

The command prints Markdown for the README: a table of each results file in the folder, and which performance targets
are met.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import verdicts
from benchmarks.gpu.record import DEFAULT_FOLDER

Values = dict[str, Any]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def kernels(values: Values) -> str:
    """Returns the peak rates, the table of all cases, and the results of the checks of row invariance."""
    measured = values["ceilings"]
    peak_rates = (
        f"copy {measured['copy_bytes_per_second'] / 1e12:.3g} TB/s,"
        f" product {measured['flops_per_second'] / 1e12:.3g} TFLOP/s"
    )
    headings = ("kernel", "µs", "% of peak, limit", "library µs", "error", "correct")
    claims = [
        f"- {claim['operation']}: {claim['compared'] - len(claim['different'])} of {claim['compared']} bit for bit"
        for claim in values["rows"]
    ]
    return "\n".join([peak_rates, "", markdown_table(headings, map(_case, values["cases"])), "", *claims])


def _case(case: Values) -> list[str]:
    name, verdict = f"{case['operation']} {case['shape']}", {True: "yes", False: "NO", None: "–"}[case["passed"]]
    if "seconds" not in case:
        return [name, "–", "–", "–", "–", verdict]
    seconds = case["seconds"]
    rivals = [spread["median"] for engine, spread in seconds.items() if engine != "ours"]
    return [
        name,
        f"{seconds['ours']['median'] * 1e6:.1f}",
        f"{case['share_of_ceiling']:.0%} {case['bound']}",
        f"{min(rivals) * 1e6:.1f}" if rivals else "–",
        f"{case['error']:.1e}",
        verdict,
    ]


def decode(values: Values) -> str:
    """Returns the tables of a shape: steps, the cost of row invariance, and plain decoding compared with others."""
    parts = [f"**{values['name']}**"]
    if "ceilings" in values:
        parts.append(f"copy {values['ceilings']['copy_bytes_per_second'] / 1e12:.3g} TB/s")
    if "steps" in values:
        headings = ("context", "nodes", "ms", "over plain", "of bandwidth", "host ms")
        parts.append(markdown_table(headings, map(_step, values["steps"])))
    lines = [
        f"- step time with {row['nodes']} nodes, with row-invariant operations / without: {row['exact_over_off']:.3f}"
        for row in values.get("numerics", ())
    ]
    lines += [f"- T_draft of {name}: {seconds * 1e3:.3f} ms" for name, seconds in values.get("draft", {}).items()]
    speeds = [(section, values[section]["tokens_per_second"]) for section in values if _is_speed(section)]
    if speeds:
        engines = list(dict.fromkeys(engine for _, speed in speeds for engine in speed))
        cells = ([section, *(_speed(speed.get(engine)) for engine in engines)] for section, speed in speeds)
        parts.append(markdown_table(("tokens/s", *engines), cells))
    return "\n\n".join([*parts, *_paragraph([*lines, *_missing_sections(values)])])


def _paragraph(lines: Sequence[str]) -> list[str]:
    """Returns a list with the joined lines, or an empty list if there are none."""
    return ["\n".join(lines)] if lines else []


def _is_speed(section: str) -> bool:
    return section.startswith(("plain ", "hugging face "))


def _step(step: Values) -> list[str]:
    share = step.get("share_of_bandwidth")
    return [
        str(step["context"]),
        str(step["nodes"]),
        f"{step['verify_seconds'] * 1e3:.3f}",
        f"{step['over_plain']:.3f}",
        "" if share is None else f"{share:.0%}",
        f"{step['host_seconds'] * 1e3:.3f}",
    ]


def _speed(spread: Values | None) -> str:
    return "–" if spread is None else f"{spread['median']:.1f}"


def speculation(values: Values) -> str:
    """Returns the table of a model, with every drafter at every batch size."""
    headings = ("batch", "drafter", "tokens/s", "× plain", "predicted × plain", "acceptance length", "equal")
    rows = [
        [
            section.removeprefix("batch "),
            row["drafter"],
            _speed(row["tokens_per_second"]),
            f"{row['speedup']:.2f}",
            f"{row['speedup_foreseen']:.2f}" if "speedup_foreseen" in row else "–",
            f"{row['acceptance_length']:.2f}",
            f"{row['equal']} of {row['answers']}",
        ]
        for section in values
        if section.startswith("batch ")
        for row in values[section]
    ]
    table = markdown_table(headings, rows)
    return "\n\n".join([f"**{values['name']}**", table, *_paragraph(_missing_sections(values))])


def _missing_sections(values: Values) -> list[str]:
    failed = [f"- failed: {name}: {reason}" for name, reason in values["failed"].items()]
    return failed + ([f"- left out, for time: {', '.join(values['left_out'])}"] if values["left_out"] else [])


PRINTERS = {"kernels": kernels, "decode": decode, "speculation": speculation}


def goals(results: dict[str, Values]) -> str:
    rows = [
        [
            verdict.goal.text,
            f"{'≥' if verdict.goal.at_least else '≤'} {verdict.goal.bound:.2f}",
            "–" if verdict.value is None else f"{verdict.value:.3f}",
            verdict.status,
        ]
        for verdict in verdicts(results)
    ]
    return markdown_table(("performance target", "bound", "measured", "status"), rows)


def folder_table(folder: Path, *, short: bool = False) -> str:
    """Returns the tables of all files in a GPU's folder and their conditions. `short`: omit the kernels' table."""
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    parts = []
    for name, values in results.items():
        machine, kind = values["machine"], name.split("-")[0]
        if kind not in PRINTERS or (short and kind == "kernels"):
            continue
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        parts.append(f"{machine['device']}, {machine['started_at'][:10]}, commit {machine['commit']}, {versions}:")
        parts.append(PRINTERS[kind](values))
    return "\n\n".join([*parts, goals(results)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prints the results files of a GPU as Markdown tables.")
    folders_help = "folders with results files (default: all such folders in benchmarks/results)"
    parser.add_argument("folders", type=Path, nargs="*", help=folders_help)
    parser.add_argument("--short", action="store_true", help="omit the kernels' table")
    args = parser.parse_args(argv)
    measured = {path.parent for path in DEFAULT_FOLDER.glob("*/*.json") if path.stem.split("-")[0] in PRINTERS}
    folders = args.folders or sorted(measured)
    if not folders:
        print("benchmarks/results contains no results of a GPU", file=sys.stderr)
        return 1
    print("\n\n".join(folder_table(folder, short=args.short) for folder in folders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
