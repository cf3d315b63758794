"""Runs the code blocks of docs/quickstart.md, with a tiny model under the name of the page's model.

Only two numbers in the blocks are replaced: the training is limited to 15 instead of 120 seconds, and the gate requires
a speedup of 0.01 instead of 1.1, because so small a model gains nothing from speculation.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ENVIRONMENT
from tests.e2e.stack import Stack, assert_nothing_is_left, start_stack
from tests.source_tree import ROOT

MODEL = "smollm2-135m-instruct"
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
_BLOCK = re.compile(r"^(curl|slipstream|openai):\n\n```(?:sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(wanted: str) -> str:
    """Returns the joined code blocks for one client: `curl`, `slipstream` or `openai`."""
    return "\n".join(block for label, block in _BLOCK.findall(PAGE) if label == wanted)


def test_the_quickstart_page_has_the_same_steps_for_each_client() -> None:
    labels = [label for label, _ in _BLOCK.findall(PAGE)]

    assert labels == ["curl", "slipstream", "openai"] * 4


@pytest.mark.wide
@pytest.mark.timeout(600)
@pytest.mark.parametrize("label", ["curl", "slipstream", "openai"])
def test_the_quickstart_works_as_written(label: str, model_dir: Path, tmp_path: Path) -> None:
    prompts = [sys.executable, "-m", "examples.prompts", str(tmp_path / "var" / "prompts")]
    subprocess.run(prompts, cwd=ROOT, check=True, capture_output=True)
    stack = start_stack(tmp_path / "data", "--model", f"{MODEL}={model_dir}", **ENVIRONMENT)
    try:
        output = run(label, stack, tmp_path)
    finally:
        assert stack.stop() == 0
    assert_nothing_is_left(stack)
    assert "speculative_decoding" in output, "the answer has no figures of speculation"
    assert re.search(r"\b(live|succeeded)\b", output), output


def run(label: str, stack: Stack, folder: Path) -> str:
    """Runs the client's code blocks. Returns their output. Raises: AssertionError: a block fails."""
    script = blocks(label).replace("120", "15").replace("1.1", "0.01")
    command = ["sh", "-ec", script] if label == "curl" else [sys.executable, "-c", script]
    variables = {"SLIPSTREAM_BASE_URL": stack.url, "SLIPSTREAM_API_KEY": stack.key, "PYTHONPATH": str(ROOT / "sdk")}
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout
