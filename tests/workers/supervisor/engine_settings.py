"""Django settings of real deployment supervisors that start fake engines."""

import sys
from pathlib import Path

from control.core.settings.embedded import *  # noqa: F403

_TESTS = Path(__file__).resolve().parents[2]
SLIPSTREAM_ENGINE_COMMAND = [sys.executable, str(_TESTS / "control" / "serving" / "deployments" / "fake_engine.py")]
