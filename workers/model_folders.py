"""The rules for folders that come from outside, whether they hold a model or a speculator. Standard library only.

An accepted folder contains no code: its files are JSON, text and safetensors, and no configuration may make a loader
import Python files.
"""

from typing import Any

MODEL_NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
    "LICENSE*",
    "*.md",
    ".gitattributes",
)
SPECULATOR_NAMES = (*MODEL_NAMES, "adapter_config.json", "draft_vocab.json", "provenance.json", "report.json")
CONFIG_NAMES = ("config.json", "adapter_config.json", "tokenizer_config.json", "generation_config.json")
# These keys make a loader import Python files, or allow it to.
CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"})
MAX_JSON_BYTES = 64 << 20


def code_key(values: Any) -> str | None:
    """Returns a key of the configuration that is in `CODE_KEYS`, or None.

    Keys at any depth count, because a configuration may contain the configurations of submodels.
    """
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if code_keys := CODE_KEYS & value.keys():
                return min(code_keys)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None
