"""Helpers for tests of fine-tuning: labelled rows, and the spec of a job that learns them."""

from pathlib import Path
from typing import Any

from tests.workers.support import write_lines
from workers.contracts import FineTuningSpec


def labelled(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def labelled_rows(count: int) -> list[dict[str, Any]]:
    """Returns rows of different lengths. The answer depends on the question."""
    return [labelled(f"Say {n} {'x' * (n % 7)}", f"{n} is {'even' if n % 2 == 0 else 'odd'}") for n in range(count)]


def fine_tuning_spec(
    folder: Path,
    model: Path,
    rows: list[dict[str, Any]],
    *,
    validation: list[dict[str, Any]] | None = None,
    **more: Any,
) -> FineTuningSpec:
    """Args: more: hyperparameters."""
    folder.mkdir(parents=True, exist_ok=True)
    return FineTuningSpec(
        job_id="job_0123",
        model_dir=str(model),
        target_revision="f00d",
        rows_path=str(write_lines(folder / "rows.jsonl", rows)),
        validation_path=None if validation is None else str(write_lines(folder / "validation.jsonl", validation)),
        output_dir=str(folder / "output"),
        checkpoint_dir=str(folder / "checkpoint"),
        hyperparameters={"precision": "float32"} | more,
    )
