"""Measures how long the validation of a dataset with 50,000 chat rows (200 MB) takes, and how much memory it needs.

    python -m benchmarks.datasets

The command prints one line of JSON, in which `extra_memory_mib` is the growth of the process's peak resident size.
"""

import json
import random
import resource
import tempfile
import time
from pathlib import Path

from control.workflows.datasets.validation import examine

NUM_ROWS = 50_000
WORDS_PER_ROW = 480  # with 8.4 bytes per word including its space: 50,000 * 480 * 8.4 bytes = 200 MB
LETTERS = "etaoinshrdlu" * 3 + '\n"é'  # JSON escapes the last three characters, which are rarer than the letters


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write_rows(path)
        peak_mib_before = peak_mib()
        began = time.perf_counter()
        with path.open("rb") as source:
            report = examine(source, on_example=lambda example, line: None)
        seconds = time.perf_counter() - began
        print(
            json.dumps(
                {
                    "rows": report.num_rows,
                    "errors": report.num_errors,
                    "mb": round(path.stat().st_size / 1e6, 1),
                    "seconds": round(seconds, 2),
                    "mb_per_second": round(path.stat().st_size / 1e6 / seconds, 1),
                    "extra_memory_mib": round(peak_mib() - peak_mib_before, 1),
                }
            )
        )


def write_rows(path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 12))) for _ in range(5_000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(NUM_ROWS):
            half = WORDS_PER_ROW // 2
            turns = [("user", half), ("assistant", WORDS_PER_ROW - half)]
            messages = [{"role": role, "content": " ".join(draw.choices(words, k=count))} for role, count in turns]
            file.write(json.dumps({"custom_id": f"row-{number}", "messages": messages}) + "\n")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
