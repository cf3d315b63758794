"""Checks every family of models in every format of weights, with models of a few thousand random weights.

    python -m benchmarks.models [--only TEXT]

For each model, the columns of the printed table are:

    loads       the format in which the engine multiplies
    parity      the largest difference of a logit from transformers, in float32; at most 1e-4
    drafters    how many drafters give the same tokens and log-probabilities as plain decoding, in bfloat16
    LoRA        the largest difference of a log-probability from peft, in float32; at most 1e-4
    tokens/s    of the engine and of transformers, four answers at a time in bfloat16. With such small models, this
                measures the overhead of a pass rather than its matrix products

A check that fails shows its error, and the exit code is then 1.
"""

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers.utils import logging as transformers_logging

from benchmarks.models.cases import Case, cases
from benchmarks.models.checks import adapter, equal_answers, parity, tokens_per_second
from engine.load import load_model
from engine.models.quantized.report import report_weights

COLUMNS = ("model type", "weights", "loads", "parity", "drafters", "LoRA", "tokens/s", "transformers")


def row_of(case: Case, folder: Path) -> tuple[list[str], bool]:
    """Returns the cells of a case, and whether all checks have passed. folder: an empty folder."""
    passed = True

    def cell(check: Callable[[], str]) -> str:
        nonlocal passed
        try:
            return check()
        except Exception as error:  # boundary of a check: the table shows any error, and the command fails
            passed = False
            return f"{type(error).__name__}: {error}"

    def loads() -> str:
        return report_weights(quantized, load_model(quantized, dtype="bfloat16", weights=case.weights)).kernel

    def lora() -> str:
        if not case.family.adapted or exact != quantized or case.weights != "auto":
            return "-"
        model = load_model(quantized, dtype="float32")
        return f"{adapter(model, quantized, folder / 'adapter', case.family.adapted):.1e}"

    def drafters() -> str:
        model = load_model(quantized, dtype="bfloat16", weights=case.weights)
        return f"{equal_answers(model, folder / 'draft')} equal"

    def speeds() -> str:
        model = load_model(quantized, dtype="bfloat16", weights=case.weights)
        ours, theirs = tokens_per_second(model, exact)
        return f"{ours:.0f} {theirs:.0f}"

    quantized, exact = case.write(folder / "model")
    cells = [cell(loads)]
    if not passed:  # the other checks would show the same error
        return [case.family.model_type, case.format, *cells, *[""] * (len(COLUMNS) - 3)], False
    cells += [cell(lambda: f"{parity(quantized, exact, case.weights):.1e}"), cell(drafters), cell(lora)]
    measured = cell(speeds)
    first, second = measured.split() if passed else (measured, "")
    return [case.family.model_type, case.format, *cells, first, second], passed


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks every family of models in every format of weights.")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose type or format contains TEXT")
    only = parser.parse_args().only
    logging.getLogger("engine").setLevel(logging.CRITICAL)  # one of the drafters raises errors on purpose
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    table, failures, chosen = Table(*COLUMNS), [], [c for c in cases() if only in f"{c.family.model_type} {c.format}"]
    for case in chosen:
        folder = Path(tempfile.mkdtemp(prefix="models-"))
        try:
            cells, passed = row_of(case, folder)
        finally:
            shutil.rmtree(folder)
        table.add_row(*cells)
        if not passed:
            failures.append(f"{case.family.model_type}, {case.format}")
    Console(width=160 if not sys.stdout.isatty() else None).print(table)
    print(f"{len(chosen) - len(failures)} of {len(chosen)} passed", *failures, sep="\n  failed: ")
    return 1 if failures or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
