"""Settings of real supervisors of deployments whose engines are pretended."""

import sys
from pathlib import Path

from control.core.settings.embedded import *  # noqa: F403

_TESTS = Path(__file__).resolve().parents[2]
SLIPSTREAM_ENGINE_COMMAND = [sys.executable, str(_TESTS / "control" / "serving" / "deployments" / "fake_engine.py")]
