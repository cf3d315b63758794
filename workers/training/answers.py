"""Turns answers that were made elsewhere into token ids, as if the model had read the prompts and written the answers.

    {"custom_id", "url", "body", "answer": {"message" | "text", "finish_reason"}}      a row; blank lines are skipped
        ──> {"custom_id", "prompt_token_ids", "completion_token_ids", "finish_reason"}  see `workers.training.data`

A chat is rendered twice with the model's template: once as the prompt alone, and once with the answer. The rest of the
second text after the first text is the answer, up to the end-of-sequence token. If the second text does not begin with
the first text, the row is refused, because the model never continues such a prompt when it serves. This happens if, for
example, the template opens a reasoning trace and the answer has none.

This module does not check whether the model would give these answers itself. The more likely the model is to give them,
the more useful they are for training. The evaluation on held-out prompts measures the result.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import read_config
from engine.fields import Fields, InvalidRequest
from engine.openai.requests import render_messages
from engine.openai.tools import parse_tools
from engine.tokenizer import Tokenizer
from workers.contracts import TrainingSpec
from workers.failures import InvalidInputError, UserConfigError

_LENGTH = "length"


def with_tokens(spec: TrainingSpec) -> TrainingSpec:
    """Returns the spec with `tokens_paths` in place of `answers_path`, if it has one.

    Raises: UserConfigError: the model's folder has no tokenizer; InvalidInputError: a row cannot be used.
    """
    if spec.answers_path is None:
        return spec
    answers, model_dir = Path(spec.answers_path), Path(spec.model_dir)
    tokens = answers.with_suffix(".tokens.jsonl")
    try:
        tokenizer = Tokenizer.load(model_dir)
    except (OSError, ValueError) as error:
        raise UserConfigError("tokenizer_not_loadable", str(error)) from error
    tokenize_answers(
        answers, tokens, tokenizer=tokenizer, max_tokens=read_config(model_dir).get("max_position_embeddings")
    )
    return replace(spec, tokens_paths=(str(tokens),), answers_path=None)


def tokenize_answers(answers: Path, tokens: Path, *, tokenizer: Tokenizer, max_tokens: int | None) -> None:
    """Args: max_tokens: the model's context, None if it is unknown. Raises: InvalidInputError: a row cannot be used."""
    with answers.open(encoding="utf-8") as rows, tokens.open("w", encoding="ascii") as target:
        for number, line in enumerate(rows, start=1):
            if line.strip():
                made = _tokenized(number, line, tokenizer)
                num_tokens = len(made["prompt_token_ids"]) + len(made["completion_token_ids"])
                if max_tokens is not None and num_tokens > max_tokens:
                    message = f"line {number}: prompt and answer have {num_tokens} tokens, the context has {max_tokens}"
                    raise InvalidInputError("context_length_exceeded", message)
                target.write(json.dumps(made) + "\n")


def _tokenized(number: int, line: str, tokenizer: Tokenizer) -> dict[str, Any]:
    try:
        row = json.loads(line)
        body, answer = row["body"], row["answer"]
        prompt, completion = _chat(body, answer, tokenizer) if "message" in answer else _text(body, answer, tokenizer)
    except InvalidRequest as error:
        raise InvalidInputError(error.code or "invalid_training_row", f"line {number}: {error}") from error
    except _TemplateMismatch as error:
        raise InvalidInputError("answer_template_mismatch", f"line {number}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        message = f"line {number}: need custom_id, body and answer, got {error!r}"
        raise InvalidInputError("invalid_training_row", message) from error
    return {
        "custom_id": row["custom_id"],
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "finish_reason": answer["finish_reason"],
    }


class _TemplateMismatch(ValueError):
    pass


def _chat(body: Mapping[str, Any], answer: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    fields, answered = Fields(body), Fields({**body, "messages": [*body["messages"], answer["message"]]})
    use = parse_tools(fields)
    prompt = render_messages(fields, tokenizer=tokenizer, use=use)
    whole = render_messages(answered, tokenizer=tokenizer, use=use, add_generation_prompt=False)
    if not whole.startswith(prompt):
        at = next((at for at, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(whole))
        raise _TemplateMismatch(
            "the model's chat template does not render the prompt in the same way when the answer follows: after "
            f"{prompt[max(0, at - 40) : at]!a}, the model reads {prompt[at : at + 40]!a}, and with the answer it is "
            f"{whole[at : at + 40]!a}"
        )
    completion = tokenizer.encode(whole[len(prompt) :], add_special_tokens=False)
    end = next((at for at, token in enumerate(completion) if token in tokenizer.eos_token_ids), len(completion))
    completion = completion[: end if answer["finish_reason"] == _LENGTH else end + 1]
    return tokenizer.encode(prompt, add_special_tokens=False), completion


def _text(body: Mapping[str, Any], answer: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the token ids of prompt and answer. A completion has no template, so its end is not learned."""
    return tokenizer.encode(body["prompt"]), tokenizer.encode(answer["text"], add_special_tokens=False)
