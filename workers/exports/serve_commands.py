"""The commands that serve a speculator together with its model, in our engine and in others.

docs/exports.md compares our acceptance with that of vLLM, which was started with the same settings as these commands.
The commands for SGLang and LoRAX follow the documentation of these engines and were not run.
"""

import json
from pathlib import Path
from typing import Any

from workers.exports import lorax, specforge
from workers.exports.folder import read_json
from workers.kinds import served_drafter

_DEPTH = 5  # drafted tokens per pass, if the speculator's configuration does not determine their number
_VLLM_METHODS = ("eagle3", "medusa", "draft_model")  # kinds for which vLLM's method has the same name


def own_command(kind: str, model: str, folder: str) -> str:
    """Returns the command for our engine. Args: folder: has the speculator as our training wrote it."""
    drafter = served_drafter(kind, with_suffix_decoding=True)
    return (
        f"python -m engine.server --model-dir {model} --model-name {model} --port 8000 "
        f"--drafter {drafter} --speculator-dir {folder}"
    )


def command_of(form: str, kind: str, model: str, exported: Path) -> str:
    """Returns the command for the engine of a format, to be run in the parent of the exported folder.

    Raises: ExchangeError: the folder has no config.json.
    """
    if form == lorax.NAME:
        return f"lorax-launcher --model-id {model} --adapter-source local --adapter-id {exported.name}"
    if form == specforge.NAME:
        return (
            f"python -m sglang.launch_server --model-path {model} --speculative-algorithm EAGLE3 "
            f"--speculative-draft-model-path {exported.name} --speculative-num-steps {_DEPTH} "
            f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {_DEPTH + 1}"
        )
    settings = json.dumps(vllm_speculation(kind, exported) | {"model": exported.name})
    return f"vllm serve {model} --speculative-config '{settings}'"


def vllm_speculation(kind: str, exported: Path) -> dict[str, Any]:
    """Returns the value of vLLM's option `speculative_config`. Raises: ExchangeError: the folder has no config.json."""
    config, depth = read_json(exported / "config.json"), _DEPTH
    if "num_heads" in config:
        depth = int(config["num_heads"])
    elif "block_size" in config:
        depth = int(config["speculators_config"]["proposal_methods"][0]["speculative_tokens"])
    method = kind if kind in _VLLM_METHODS else config["speculators_model_type"]
    return {"method": method, "model": str(exported), "num_speculative_tokens": depth}
