"""Django settings of real deployment supervisors that start fake engines."""

import os
import sys
import time
from pathlib import Path

from control.core.settings.embedded import *  # noqa: F403

# A test makes this folder to delay the start of engines on this machine until it deletes the folder. Each waiting
# process writes a file there, whose name is its id.
_HELD = Path(os.environ["SLIPSTREAM_DATA_DIR"], "held-engines")
if _HELD.exists():
    (_HELD / str(os.getpid())).touch()
while _HELD.exists():
    time.sleep(0.02)

_TESTS = Path(__file__).resolve().parents[2]
SLIPSTREAM_ENGINE_COMMAND = [sys.executable, str(_TESTS / "control" / "serving" / "deployments" / "fake_engine.py")]
