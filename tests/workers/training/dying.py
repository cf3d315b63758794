"""`python -m tests.workers.training.dying SPEC.json N`: a training job that is killed with SIGKILL in its N-th step."""

import os
import signal
import sys
from pathlib import Path

from workers.contracts import Event, Progress, TrainingSpec, read_spec
from workers.training.job import run_training


class DieIn:
    def __init__(self, num_steps: int) -> None:
        self._left = num_steps

    def __call__(self, event: Event) -> None:
        self._left -= isinstance(event, Progress) and event.unit == "steps"
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    spec = read_spec(Path(sys.argv[1]))
    assert isinstance(spec, TrainingSpec)
    run_training(spec, DieIn(int(sys.argv[2])))
