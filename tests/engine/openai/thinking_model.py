"""A tiny reasoning model: a tokenizer with think markers, and a chat template with tools and thinking switches."""

from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken

from tests.tiny_model import make_tiny_model

BEGIN, END = 259, 260  # token ids of the markers; the ids of the tokenizer of `make_tiny_model` are smaller

TEMPLATE = (
    "{% if effort_is_bad is defined %}{{ raise_exception('no such effort') }}{% endif %}"
    "{% if reasoning_effort is defined %}effort={{ reasoning_effort }}\n{% endif %}"
    "{% if tools %}{{ tools | tojson }}\n{# <tool_call> #}{% endif %}"
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:"
    "{% if opened %}<think>\n{% elif enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)


def make_thinking_model(directory: Path, *, special: bool = False, **overrides: Any) -> Path:
    """Makes the model's folder. With `opened` as a template variable, the prompt ends with the begin marker.

    special: whether the markers are special tokens, which decoding leaves out.
    """
    make_tiny_model(directory, "llama", **{"vocab_size": END + 1, "max_position_embeddings": 2048} | overrides)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for marker in ("<think>", "</think>"):
        tokenizer.add_tokens(AddedToken(marker, special=special, normalized=False), special_tokens=special)
    assert tokenizer.convert_tokens_to_ids(["<think>", "</think>"]) == [BEGIN, END]
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
