"""Runs a fine-tuning job that kills its own process with SIGKILL after N steps:

python -m tests.workers.training.lora.dying_job SPEC.json N
"""

import sys
from pathlib import Path

from tests.workers.training.dying import DieAfter
from workers.contracts import FineTuningSpec, read_spec
from workers.training.lora.job import run_fine_tuning

if __name__ == "__main__":
    spec = read_spec(Path(sys.argv[1]))
    assert isinstance(spec, FineTuningSpec)
    run_fine_tuning(spec, DieAfter(int(sys.argv[2])))
