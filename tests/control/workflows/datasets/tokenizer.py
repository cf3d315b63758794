"""Writes a tokenizer and a chat template into a model folder.

Each word is a token. The template writes the role and the content of each message, and the word `end` after each
message of the assistant.
"""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }}"
    "{% if message.role == 'assistant' %} end{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
