"""Runs a training job that kills its own process with SIGKILL after N steps:

python -m tests.workers.training.dying SPEC.json N
"""

import os
import signal
import sys
from pathlib import Path

from workers.contracts import Event, Progress, TrainingSpec, read_spec
from workers.training.job import run_training


class DieAfter:
    def __init__(self, num_steps: int) -> None:
        self._steps_left = num_steps

    def __call__(self, event: Event) -> None:
        self._steps_left -= isinstance(event, Progress) and event.unit == "steps"
        if self._steps_left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    spec = read_spec(Path(sys.argv[1]))
    assert isinstance(spec, TrainingSpec)
    run_training(spec, DieAfter(int(sys.argv[2])))
