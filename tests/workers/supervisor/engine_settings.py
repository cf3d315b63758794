"""Django settings of real deployment supervisors that start fake engines."""

import os
import sys
import time
from pathlib import Path

from control.core.settings.embedded import *  # noqa: F403

while Path(os.environ["SLIPSTREAM_DATA_DIR"], "hold-engines").exists():
    time.sleep(0.02)  # a test delays the start of engines on this machine by this file, until it deletes the file

_TESTS = Path(__file__).resolve().parents[2]
SLIPSTREAM_ENGINE_COMMAND = [sys.executable, str(_TESTS / "control" / "serving" / "deployments" / "fake_engine.py")]
