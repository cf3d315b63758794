"""Adds token ids to the choices of a response, for requests with `return_token_ids`. The members' names are vLLM's."""

from collections.abc import Sequence
from typing import Any

from engine.openai.answer import Answer
from engine.openai.requests import ParsedRequest


def add_token_ids(body: dict[str, Any], answers: Sequence[Answer], parsed: ParsedRequest) -> dict[str, Any]:
    """Returns the body of a chat or text completion with the ids of prompts and answers, if they were requested.

    The prompt's ids are at the top level of a chat completion, and in each choice of a text completion.
    """
    if not parsed.return_token_ids:
        return body
    for choice, answer, (prompt, _) in zip(body["choices"], answers, parsed.choices, strict=True):
        choice["token_ids"] = list(answer.token_ids)
        if body["object"] == "text_completion":
            choice["prompt_token_ids"] = list(parsed.prompts[prompt])
        else:
            body["prompt_token_ids"] = list(parsed.prompts[prompt])
    return body
