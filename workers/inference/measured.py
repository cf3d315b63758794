"""Stores the measurements of an evaluation as JSON in a folder, so that an interrupted evaluation can resume.

Measurements are valid only for the build and the device that made them: a report must not mix two machines.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.request import SpeculationStats
from engine.tokenizer import Tokenizer
from workers.inference.comparison import ArmTotals, Measurement, measurement_of
from workers.inference.rows import RowAnswer, RowRequest
from workers.inference.segments import Segment
from workers.inference.timing import AnswerTiming

_FILE = "measurements.json"

logger = logging.getLogger(__name__)


def write_measurements(folder: Path, measurements: Sequence[Measurement], environment: Mapping[str, Any]) -> None:
    """Writes the measurements into a new folder.

    environment: the build and the device that made the measurements, as JSON.
    """
    folder.mkdir(parents=True)
    stored = [
        {"concurrency": m.concurrency, "arms": {name: _as_values(arm) for name, arm in m.all_arms.items()}}
        for m in measurements
    ]
    (folder / _FILE).write_text(json.dumps({"made_by": dict(environment), "measurements": stored}))


def read_measurements(
    folder: Path, rows: Sequence[RowRequest], tokenizer: Tokenizer, environment: Mapping[str, Any]
) -> list[Measurement]:
    """Returns the stored measurements, or none if another build or device made them."""
    if not (folder / _FILE).exists():
        return []
    stored = json.loads((folder / _FILE).read_text())
    if stored["made_by"] != environment:
        logger.warning("stored measurements are ignored: they come from %s, this is %s", stored["made_by"], environment)
        return []
    by_number = {row.row.number: row for row in rows}

    def totals(values: Mapping[str, Any]) -> ArmTotals:
        answers = [_answer(by_number[answer["row"]], tokenizer, answer) for answer in values["answers"]]
        segments = [Segment(**segment) for segment in values["segments"]]
        timings = [AnswerTiming(**timing) for timing in values["timings"]]
        return ArmTotals(**{**values, "answers": answers, "segments": segments, "timings": timings})

    return [
        measurement_of(m["concurrency"], {name: totals(values) for name, values in m["arms"].items()})
        for m in stored["measurements"]
    ]


def _as_values(arm: ArmTotals) -> dict[str, Any]:
    return {
        "num_tokens": arm.num_tokens,
        "seconds": arm.seconds,
        "phase_seconds": arm.phase_seconds,
        "segments": [asdict(segment) for segment in arm.segments],
        "timings": [asdict(timing) for timing in arm.timings],
        "answers": [
            {
                "row": answer.request.row.number,
                "token_ids": answer.token_ids,
                "accepted": answer.accepted,
                "speculation": asdict(answer.speculation),
            }
            for answer in arm.answers
        ],
    }


def _answer(request: RowRequest, tokenizer: Tokenizer, values: Mapping[str, Any]) -> RowAnswer:
    answer = RowAnswer(request, tokenizer)
    answer.token_ids, answer.accepted = values["token_ids"], values["accepted"]
    answer.speculation = SpeculationStats(**values["speculation"])
    return answer
