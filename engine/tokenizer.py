"""The model's tokenizer and chat template, based on `transformers`.

The text of an answer is `decode(ids)`, without special tokens and without clean-up of spaces. It depends on the ids
alone, so `engine.text.TextStream` can return the same text piece by piece.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.chat_rendering import Chat, TemplateRefusal, chat_rendering
from engine.generation_defaults import OPENAI_DEFAULTS, GenerationDefaults, read_generation_defaults
from engine.thinking import ThinkMarkers, find_markers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses these messages."""


class Tokenizer:
    """Immutable after construction, so several threads may use it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        generation_defaults: GenerationDefaults = OPENAI_DEFAULTS,
    ) -> None:
        """
        Args:
            eos_token_ids: end tokens of the model's configuration, in addition to the tokenizer's end token.
            generation_defaults: sampling parameters of requests that do not set them.
        """
        self._tokenizer = tokenizer
        self.generation_defaults = generation_defaults
        decoders = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"])
        self._byte_level = '"ByteLevel"' in decoders
        # whether `decode` returns the UTF-8 text of the ids' `text_bytes`
        self.text_is_utf8 = _types_of(json.loads(decoders)) == {"ByteLevel"}
        self._byte_fallback = '"ByteFallback"' in decoders
        self._special = frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._added = frozenset(tokenizer.added_tokens_decoder)
        own = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
        self.eos_token_ids: frozenset[int] = eos_token_ids | own
        self.vocab_size: int = len(tokenizer)  # all ids are smaller; the logits of a model may have more columns

    @classmethod
    def load(cls, model_dir: Path, *, use_generation_config: bool = True) -> "Tokenizer":
        """Reads only local files and runs no code from the folder.

        Args:
            use_generation_config: whether sampling defaults are those of generation_config.json.

        Raises:
            OSError, ValueError: the folder holds no tokenizer that `transformers` can load, or sampling defaults that
                no request may have.
        """
        tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
        defaults = read_generation_defaults(model_dir) if use_generation_config else OPENAI_DEFAULTS
        return cls(tokenizer, eos_token_ids=_configured_eos(model_dir), generation_defaults=defaults)

    @cached_property
    def think_markers(self) -> ThinkMarkers | None:
        """The markers of reasoning traces; None if the template has none, or if a marker is more than one token."""
        added = {self._token(token): token for token in self._added}
        return find_markers(self.tool_template, added, lambda text: self.encode(text, add_special_tokens=False))

    @property
    def tool_template(self) -> str:
        """The chat template used for requests with tools; "" if there is none."""
        return self._tokenizer.get_chat_template(tools=[]) if self._tokenizer.chat_template else ""

    def info(self) -> dict[str, Any]:
        """Returns what vLLM's `/tokenizer_info` has: the class, special tokens by role, and the chat template."""
        own = self._tokenizer
        template = {"chat_template": own.chat_template} if own.chat_template else {}
        return {"tokenizer_class": type(own).__name__, **own.special_tokens_map, **template}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns token ids. `add_special_tokens`: whether to add configured tokens such as begin-of-sequence."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the token ids of the text of `render_chat`, which has the same arguments and errors."""
        text = self.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_variables=template_variables,
        )
        return self.encode(text, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders the model's chat template as `transformers` does (engine/chat_rendering.py).

        Args:
            template_variables: further variables of the template, such as Qwen3's `enable_thinking`.

        Raises: ChatTemplateError: there is no template, it refuses the messages, takes too long or too much memory,
        or a variable is reserved.
        """
        variables = dict(template_variables or {})
        if reserved := sorted(variables.keys() & _reserved_variables()):
            raise ChatTemplateError(f"chat template variables must not be any of {reserved}: they are reserved")
        if not self._tokenizer.chat_template:
            raise ChatTemplateError("this model has no chat template; use /v1/completions with a prompt")
        described = [dict(tool) for tool in tools] if tools else None
        chat = Chat(
            template=self._tokenizer.get_chat_template(tools=described),
            # Absent values are left out, as `apply_chat_template` does: many templates would print None.
            messages=[{name: value for name, value in message.items() if value is not None} for message in messages],
            tools=described,
            add_generation_prompt=add_generation_prompt,
            variables={**self._tokenizer.special_tokens_map, **variables},
        )
        try:
            return chat_rendering().render(chat)
        except TemplateRefusal as error:
            raise ChatTemplateError(f"the model's chat template {error}") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return cast(str, text)  # a string, because the argument is one sequence

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token, which may be part of a character; for added tokens, the bytes of the name."""
        token = self._token(token_id)
        if token_id in self._added:
            return token.encode()
        if self._byte_level:
            table = _byte_of_character()
            return bytes(table[c] for c in token) if all(c in table for c in token) else token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return token.replace("▁", " ").encode()

    def text_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that the token contributes to `decode`, if `text_is_utf8`."""
        token, table = "" if self.is_special(token_id) else self._token(token_id), _byte_of_character()
        return bytes(table[c] for c in token) if all(c in table for c in token) else token.encode()

    def vocabulary(self) -> list[bytes]:
        """Returns the bytes that each token adds to an answer; b"" for special tokens, which `decode` leaves out."""
        return [b"" if self.is_special(i) else self.token_bytes(i) for i in range(self.vocab_size)]

    def is_special(self, token_id: int) -> bool:
        """Whether `decode` leaves the token out."""
        return token_id in self._special

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one raw byte, whose text depends on adjacent byte tokens."""
        return self._byte_fallback and _BYTE_TOKEN.fullmatch(self._token(token_id)) is not None

    def _token(self, token_id: int) -> str:
        """Returns the token's string in the vocabulary; "" for an id that is not in the vocabulary."""
        token = cast(str | None, self._tokenizer.convert_ids_to_tokens(token_id))
        return token or ""


def _types_of(decoder: Any) -> set[str]:
    """Returns the types of all decoders of a sequence, or of a single decoder."""
    if decoder is None:
        return set()
    return set().union(*map(_types_of, decoder["decoders"])) if decoder["type"] == "Sequence" else {decoder["type"]}


def _configured_eos(model_dir: Path) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        eos = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if eos is not None:
            return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()


@cache
def _byte_of_character() -> dict[str, int]:
    """Maps GPT-2's printable characters back to bytes. Source: `bytes_to_unicode` of OpenAI's gpt-2 encoder."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


@cache
def _reserved_variables() -> frozenset[str]:
    own = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    return frozenset(own) | {"messages"}
