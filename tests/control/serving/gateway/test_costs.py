"""The amount that a request reserves under spend caps is at least what the request can cost."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from control.serving.gateway.completion_request import CompletionRequest, read
from control.serving.gateway.costs import cost_bound
from control.serving.gateway.model_limits import DEFAULT_CONTEXT_TOKENS, model_limits, text_bytes
from control.serving.gateway.routes import Route

ROUTE = Route(
    named_id="d", main=(), canary=(), canary_percent=0, is_capped=True, input_nanousd=1, output_nanousd=1000,
    context_tokens=100, template_bytes=0, remembers_answers=True, base_model_id="m",
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "output_tokens"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 1000}, 100),
        ({"max_tokens": "7"}, 100),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 0}, 7),
        ({"max_tokens": 7, "prompt": [1, 2, 3]}, 7),
        ({"max_tokens": 7, "prompt": ["a", "b"], "n": 2}, 28),
        ({"max_tokens": 7, "prompt": [[1, 2], [3]]}, 14),
    ],
)
def test_the_reserved_cost_covers_every_answer_of_a_request(body: dict[str, Any], output_tokens: int) -> None:
    request = CompletionRequest.of({"model": "m", **body}, num_bytes=50)

    assert cost_bound(request, replace(ROUTE, input_nanousd=0)) == 1000 * output_tokens


@pytest.mark.parametrize(
    ("values", "answer_tokens"), [({}, 100), ({"max_tokens": 7}, 7), ({"max_tokens": 7, "n": 3}, 21)]
)
def test_an_audit_reserves_the_price_of_input_tokens_for_the_audited_answers(
    values: dict[str, Any], answer_tokens: int
) -> None:
    body = {"model": "m", "request": {"prompt": "x", **values}, "response": {"choices": []}}
    request = CompletionRequest.of(body, num_bytes=10**6, is_audit=True)

    assert request.is_audit
    assert cost_bound(request, ROUTE) == 100 + answer_tokens


def test_a_prompt_is_never_reserved_as_longer_than_the_context() -> None:
    request = CompletionRequest.of({"model": "m", "max_tokens": 1}, num_bytes=10**6)

    assert cost_bound(request, ROUTE) == 100 + 1000


CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDY = (
    "{# Comments are not rendered. #}{{ bos_token }}{{ \"Follow the company's rules. \" * 1 }}" + "Rule by rule. " * 200
    + "{% for message in messages %}" + "A very long separator between two messages. " * 50
    + "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}Here follows a part: {{ part.text }}{{ eos_token }}{% endfor %}{% endif %}"
    "{{ eos_token }}{% endfor %}"
)  # fmt: skip
TOOLS = (
    "{% for tool in tools %}You may call: {{ tool | tojson(indent=4) }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)

texts = st.text(max_size=60)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=4)
roles = st.sampled_from(["system", "user", "assistant"])
values = st.recursive(st.text(max_size=5), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3))


def messages_with(contents: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.fixed_dictionaries({"role": roles, "content": contents}), min_size=1, max_size=8)


def rendered_bytes(template: str, body: dict[str, Any]) -> int:
    """Returns the number of bytes of the normalised prompt, plus 1 for a begin-of-sequence token.

    The prompt cannot have more tokens than that.
    """
    environment = Environment()  # no autoescaping, because the result is a prompt and not HTML
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    variables = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": [], **body}
    text = environment.from_string(template).render(**variables)
    return len(unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")) + 1


def reserved_tokens(template: str, body: dict[str, Any], *, escaped: bool, context_tokens: int = 10**9) -> int:
    raw = json.dumps({"model": "m", **body}, ensure_ascii=escaped, separators=(",", ":")).encode("utf-8", "replace")
    route = replace(ROUTE, context_tokens=context_tokens, template_bytes=text_bytes(template), output_nanousd=0)
    return cost_bound(read(raw, "/v1/chat/completions")[0], route)


@given(messages=messages_with(texts) | messages_with(parts), escaped=st.booleans())
@pytest.mark.parametrize("template", [CHATML, WORDY])
def test_a_chat_reserves_at_least_as_many_tokens_as_its_rendered_prompt_has_bytes(
    template: str, messages: list[Any], escaped: bool
) -> None:
    if template is CHATML and any(not isinstance(message["content"], str) for message in messages):
        return  # this template takes strings only

    body = {"messages": messages}

    assert reserved_tokens(template, body, escaped=escaped) >= rendered_bytes(template, body)


@given(messages=messages_with(texts), tools=st.lists(values, min_size=1, max_size=3))
def test_a_chat_with_tools_reserves_the_whole_context(messages: list[Any], tools: list[Any]) -> None:
    body = {"messages": messages, "tools": tools}
    context_tokens = rendered_bytes(TOOLS, body)

    assert reserved_tokens(TOOLS, body, escaped=False, context_tokens=context_tokens) == context_tokens


def test_a_short_chat_reserves_little_of_a_large_context() -> None:
    body = {"messages": [{"role": "user", "content": "2 + 2?"}]}

    assert reserved_tokens(CHATML, body, escaped=False) < 500


@pytest.mark.parametrize("text", ["\U0001d160" * 100, "שׁ" * 100])  # NFC makes the first text three times as long
def test_characters_that_normalisation_makes_longer_count_as_longer(text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}]}

    assert reserved_tokens("{{ messages[0].content }}", body, escaped=False) >= rendered_bytes(
        "{{ messages[0].content }}", body
    )


@pytest.mark.parametrize(
    ("files", "template_bytes"),
    [
        ({}, 0),
        ({"tokenizer_config.json": '{"chat_template": "12345{{ \'678\' }}"}'}, 8),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "a", "template": "1"}, {"name": "b", '
          '"template": "22"}]}'}, 2),
        ({"tokenizer_config.json": '{"chat_template": "long"}', "chat_template.jinja": "1"}, 1),
        ({"tokenizer_config.json": "not JSON"}, DEFAULT_CONTEXT_TOKENS),
    ],
)  # fmt: skip
def test_the_text_of_a_models_chat_template_is_measured(
    tmp_path: Path, files: dict[str, str], template_bytes: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    assert model_limits(str(tmp_path), "").template_bytes == template_bytes
