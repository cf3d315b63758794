"""The child process of a job: `python -m workers.run SPEC.json`.

It reads a spec, runs the job, and prints one JSON event per line (see `workers.contracts`). Its exit status is 0 after
`finished` and 1 after `failed`; any other status means that the process was killed, or crashed in native code.
Standard output holds events only. All other output, from Python or C, goes to standard error.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from workers.contracts import (
    BatchSpec,
    EvaluationSpec,
    FineTuningSpec,
    Finished,
    ModelCheckSpec,
    Spec,
    TrainingSpec,
    read_spec,
)
from workers.emitter import Emit, EventWriter
from workers.failures import failed_event
from workers.kinds import AUTO
from workers.log_lines import configure_logging

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m workers.run SPEC.json", file=sys.stderr)
        return 2
    # Set before torch is imported: on a shared machine, spinning OpenMP threads made a 35 ms forward pass take 900 ms.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    configure_logging(sys.stderr)
    with _events_only_stdout() as stream:
        return _run(Path(arguments[0]), EventWriter(stream))


def _events_only_stdout() -> TextIO:
    """Returns a stream to standard output. Effects: all other writes to file descriptor 1 go to standard error."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def _run(spec_path: Path, emit: Emit) -> int:
    try:
        finished = _dispatch(read_spec(spec_path), emit)
    except Exception as error:  # the boundary of the job: every failure becomes an event
        logger.exception("job failed")
        emit(failed_event(error))
        return 1
    emit(finished)
    return 0


def _dispatch(spec: Spec, emit: Emit) -> Finished:
    # Imported here: torch must see the environment set above, and a bad spec should fail before the slow import.
    match spec:
        case BatchSpec():
            from workers.inference.batch import run_batch

            return run_batch(spec, emit)
        case TrainingSpec():
            from workers.training.answers import with_tokens
            from workers.training.auto import run_auto_training
            from workers.training.job import run_training

            spec = with_tokens(spec)
            return run_auto_training(spec, emit) if spec.method == AUTO else run_training(spec, emit)
        case FineTuningSpec():
            from workers.training.lora.job import run_fine_tuning

            return run_fine_tuning(spec, emit)
        case EvaluationSpec():
            from workers.inference.evaluation import run_evaluation

            return run_evaluation(spec, emit)
        case ModelCheckSpec():
            from workers.inference.perplexity import run_model_check

            return run_model_check(spec)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
