"""Measures how fast a dataset with 50,000 chat rows and 200 MB is validated, and how much memory this takes.

    python -m benchmarks.datasets

Prints one line of JSON. `extra_memory_mib` is the growth of the peak resident size of the process.
"""

import json
import random
import resource
import tempfile
import time
from pathlib import Path

from control.workflows.datasets.validation import examine

NUM_ROWS = 50_000
WORDS_PER_ROW = 480  # a word has 8.4 bytes including its space, which makes 200 MB in total
LETTERS = (
    "etaoinshrdlu" * 3 + '\n"é'
)  # the last three are escaped in JSON, and each occurs a third as often as a letter


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write_rows(path)
        before = peak_mib()
        began = time.perf_counter()
        with path.open("rb") as source:
            found = examine(source, on_example=lambda example, line: None)
        seconds = time.perf_counter() - began
        print(
            json.dumps(
                {
                    "rows": found.num_rows,
                    "errors": found.num_errors,
                    "mb": round(path.stat().st_size / 1e6, 1),
                    "seconds": round(seconds, 2),
                    "mb_per_second": round(path.stat().st_size / 1e6 / seconds, 1),
                    "extra_memory_mib": round(peak_mib() - before, 1),
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
