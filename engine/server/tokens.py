"""Handles POST /tokenize and /detokenize, with the bodies of vLLM, and /v1/messages/count_tokens, with Anthropic's."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.fields import Fields, InvalidRequest, encodable, kind_of, reject_unknown
from engine.openai.messages_api.requests import message_prompt
from engine.openai.reasoning import SWITCHES
from engine.openai.requests import encode_messages
from engine.openai.tools import parse_tools
from engine.tokenizer import Tokenizer

_COMMON = frozenset({"model", "return_token_strs"})
_TEXT = _COMMON | {"prompt", "add_special_tokens"}
_CHAT = _COMMON | SWITCHES | {"messages", "add_generation_prompt", "tools"}

CheckModel = Callable[[str], object]  # raises InvalidRequest if the server has no model of this name


def tokenize(
    body: Mapping[str, Any], *, tokenizer: Tokenizer, max_seq_len: int, check_model: CheckModel
) -> dict[str, Any]:
    """Tokenizes `prompt` exactly as a text completion does, or `messages` as a chat completion does.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    reject_unknown(fields, known=_CHAT if "messages" in body else _TEXT)
    check_model(fields.string("model", ""))
    if "messages" in body:
        add_prompt = fields.boolean("add_generation_prompt", True)
        tool_use = parse_tools(fields)
        ids = [*encode_messages(fields, tokenizer=tokenizer, use=tool_use, add_generation_prompt=add_prompt)]
    else:
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            raise InvalidRequest(f"prompt must be a string, got {kind_of(prompt)}", param="prompt")
        special = fields.boolean("add_special_tokens", True)
        ids = tokenizer.encode(encodable(prompt, param="prompt"), add_special_tokens=special)
    wants_strings = fields.boolean("return_token_strs", False)
    strings = [tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids] if wants_strings else None
    return {"count": len(ids), "max_model_len": max_seq_len, "tokens": ids, "token_strs": strings}


def detokenize(body: Mapping[str, Any], *, tokenizer: Tokenizer, check_model: CheckModel) -> dict[str, Any]:
    """Decodes token ids to a text that includes special tokens, as in vLLM.

    Raises: InvalidRequest
    """
    fields = Fields(body)
    reject_unknown(fields, known=("model", "tokens"))
    check_model(fields.string("model", ""))
    ids = fields.get("tokens")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids):
        message = f"tokens must be a list of token ids in 0..{tokenizer.vocab_size - 1}, got {kind_of(ids)}"
        raise InvalidRequest(message, param="tokens")
    return {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}


def count_tokens(body: Mapping[str, Any], *, tokenizer: Tokenizer, check_model: CheckModel) -> dict[str, Any]:
    """Counts the prompt tokens of a request to /v1/messages. Raises: InvalidRequest."""
    check_model(Fields(body).string("model", ""))
    return {"input_tokens": len(message_prompt(body, tokenizer=tokenizer))}
