"""Django settings of real deployment supervisors that start fake engines."""

import os
import sys
import time
from pathlib import Path

from control.core.settings.embedded import *  # noqa: F403

# A test delays the start of engines on this machine by making this folder, in which the waiting processes write their
# ids, until it deletes the folder.
_HELD = Path(os.environ["SLIPSTREAM_DATA_DIR"], "held-engines")
if _HELD.exists():
    (_HELD / str(os.getpid())).touch()
while _HELD.exists():
    time.sleep(0.02)

_TESTS = Path(__file__).resolve().parents[2]
SLIPSTREAM_ENGINE_COMMAND = [sys.executable, str(_TESTS / "control" / "serving" / "deployments" / "fake_engine.py")]
