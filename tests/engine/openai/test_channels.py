"""In gpt-oss's format, the answer is the message in the channel `final`; the text before it is the reasoning trace."""

from collections.abc import Sequence
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from engine.fields import Fields, InvalidRequest
from engine.openai.answer import Answer, AnswerStream
from engine.openai.reasoning import parse_thinking
from engine.openai.requests import ParsedRequest, parse_chat
from engine.openai.tool_calls import form_of_template
from engine.request import FinishReason
from engine.tokenizer import Tokenizer
from tests.engine.test_text import pieces_of
from tests.tiny_model import make_tiny_model

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
FINAL = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), "llama", vocab_size=261, eos_token_id=0)
    core = transformers.AutoTokenizer.from_pretrained(folder)
    core.add_tokens([AddedToken(name, special=True) for name in ("<|channel|>", "<|message|>")], special_tokens=True)
    core.eos_token = "<|endoftext|>"
    core.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer.load(folder)


def chat(tokenizer: Tokenizer, **body: Any) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": "hi"}]} | body
    return parse_chat(body, tokenizer=tokenizer, max_seq_len=500)


def answer_in_steps(tokenizer: Tokenizer, ids: Sequence[int], sizes: Sequence[int]) -> Answer:
    stream = AnswerStream(tokenizer, thinking=chat(tokenizer).separated)
    steps = pieces_of(ids, sizes)
    for number, step in enumerate(steps):
        stream.push(step, None, FinishReason.LENGTH if number == len(steps) - 1 else None)
    return stream.answer()


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{ANALYSIS}hm, 漢{NEXT}{FINAL}yes", "hm, 漢", "yes"),
        (f"{FINAL}yes", "", "yes"),
        (f"{ANALYSIS}hm{NEXT}<|channel|>commentary<|message|> so{NEXT}{FINAL}yes", "hm so", "yes"),
        ("<|channel|>final json<|message|>{}", "", "{}"),
        (f"{ANALYSIS}hm", "hm", ""),
        (f"{ANALYSIS}the final{NEXT}<|channel|>fin", "the final", ""),
        (f"{ANALYSIS}hm{NEXT}{FINAL}final", "hm", "final"),
    ],
)
def test_the_answer_is_the_message_in_the_final_channel(
    tokenizer: Tokenizer, text: str, reasoning: str, content: str
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)

    answer = answer_in_steps(tokenizer, ids, [1] * len(ids))

    assert (answer.reasoning, answer.text) == (reasoning, content)
    assert answer.num_reasoning_tokens == len(ids) - len(content)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([FINAL, ANALYSIS, NEXT, "<|message|>", "<|channel|>", "fin", "x"]), max_size=8),
    st.lists(st.integers(1, 4), min_size=120, max_size=120),
)
def test_trace_and_answer_do_not_depend_on_how_steps_group_the_tokens(
    tokenizer: Tokenizer, parts: list[str], sizes: list[int]
) -> None:
    ids = tokenizer.encode("".join([*parts, "a"]), add_special_tokens=False)

    assert answer_in_steps(tokenizer, ids, sizes) == answer_in_steps(tokenizer, ids, [len(ids)])


def test_a_prompt_whose_last_marker_is_not_start_begins_no_reasoning_trace(tokenizer: Tokenizer) -> None:
    assert chat(tokenizer).separated is not None
    for text in (
        "",
        "<|start|>user<|message|>hi<|end|>",
        "<|start|>user<|message|>hi",
        "<|start|>assistant<|channel|>",
    ):
        assert parse_thinking(Fields({}), tokenizer.encode(text), tokenizer) is None, text


@pytest.mark.parametrize(
    "body",
    [
        {"thinking_token_budget": 5},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    ],
    ids=["budget", "tools"],
)
def test_options_that_are_not_supported_with_channels_are_refused(tokenizer: Tokenizer, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat(tokenizer, **body)
    assert raised.value.code == "unsupported_parameter"


def test_a_template_with_channels_has_no_known_call_format() -> None:
    assert form_of_template('<|channel|>commentary {"name": "f", "parameters": {}} <tool_call>') is None
