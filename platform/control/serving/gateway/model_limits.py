"""Reads from the folder of a base model how long its prompts can be."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

DEFAULT_CONTEXT_TOKENS = 131_072  # of a model whose configuration cannot be read
_COMMENT_OR_TAG = re.compile(r"{#.*?#}|({%.*?%}|{{.*?}})", re.DOTALL)
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    context_tokens: int
    template_bytes: int  # of the chat template's literal text, including the strings in its code


@lru_cache(maxsize=1024)
def model_limits(path: str, revision: str) -> ModelLimits:
    """Returns the limits of the model in this folder, from a cache.

    Args: revision: part of the cache's key, so that a model that was registered again is read again.
    """
    folder = Path(path)
    try:
        context_tokens = int(json.loads((folder / "config.json").read_bytes())["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        context_tokens = DEFAULT_CONTEXT_TOKENS
    try:
        template_bytes = max((text_bytes(template) for template in _templates(folder)), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        template_bytes = context_tokens
    return ModelLimits(context_tokens, template_bytes)


def text_bytes(template: str) -> int:
    def strings_of(found: re.Match[str]) -> str:
        return "".join(one + other for one, other in _STRING.findall(found[1] or ""))

    return len(_COMMENT_OR_TAG.sub(strings_of, template).encode())


def _templates(folder: Path) -> list[str]:
    """Returns the model's chat templates: one, or several with names."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return [own.read_text()]
    settings = folder / "tokenizer_config.json"
    source: Any = json.loads(settings.read_bytes()).get("chat_template") if settings.exists() else None
    if source is None:
        return []
    return [source] if isinstance(source, str) else [named["template"] for named in source]
