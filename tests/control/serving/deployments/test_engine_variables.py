"""The variables that a launcher sets for an engine."""

from pathlib import Path

import pytest

from control.core.settings.config import Config
from control.serving.deployments.engine_tls import KEY_VARIABLE
from control.serving.deployments.launchers.engine_process import OPERATOR_TOKEN_VARIABLE, TOKEN_VARIABLE

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("variable", [KEY_VARIABLE, TOKEN_VARIABLE, OPERATOR_TOKEN_VARIABLE])
def test_the_engine_reads_each_variable_and_no_setting_has_its_name(variable: str) -> None:
    settings = {f"SLIPSTREAM_{name.upper()}" for name in Config.model_fields}

    assert "SLIPSTREAM_ENGINE_TLS" in settings
    assert variable not in settings
    assert f' = "{variable}"' in (ROOT / "engine" / "server" / "__main__.py").read_text()
