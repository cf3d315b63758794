"""The sampling parameters that a model's authors recommend in `generation_config.json`.

As in vLLM, these parameters apply where a request sets no value of its own, and `do_sample` has no effect.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from engine.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Defaults of the parameters in `engine.request.SamplingParams`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None  # limit of a request that sets none; None: as many tokens as fit into the context


OPENAI_DEFAULTS = GenerationDefaults()


def read_generation_defaults(model_dir: Path) -> GenerationDefaults:
    """Reads generation_config.json. If there is no such file, returns OpenAI's defaults.

    Raises: ValueError: a value in the file is not allowed in a request; the message names the value.
    """
    path = model_dir / "generation_config.json"
    if not path.is_file():
        return OPENAI_DEFAULTS
    fields = Fields(json.loads(path.read_text()), path="generation_config.json")
    return GenerationDefaults(
        temperature=fields.number("temperature", 1.0, at_least=0.0, at_most=2.0),
        top_p=fields.number("top_p", 1.0, above=0.0, at_most=1.0),
        top_k=max(0, fields.integer("top_k", at_least=-1) or 0),
        min_p=fields.number("min_p", 0.0, at_least=0.0, at_most=1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, above=0.0, at_most=10.0),
        max_tokens=fields.integer("max_new_tokens", at_least=1),
    )
