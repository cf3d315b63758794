"""Generates random request bodies for the model of tests.engine.openai.thinking_model.

A body combines response formats, tools, stop strings and tokens, log-probabilities, penalties, logit biases, thinking
budgets and sampling parameters.
"""

from typing import Any

from hypothesis import strategies as st

from tests.engine.openai.thinking_model import BEGIN, END
from tests.engine.openai.tool_model import tool

Body = dict[str, Any]

_END_OF_TEXT = 2  # id of the end-of-sequence token
_INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_NESTED = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "ab", "abc"]},
        "parts": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 3}},
    },
    "required": ["kind", "parts"],
    "additionalProperties": False,
}


def _schema(schema: Body) -> Body:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


_TOOLS = [tool("a", parameters=_INTEGER), tool("b", parameters=_NESTED, strict=True)]
_FORMATS: list[Body] = [
    _schema(_INTEGER),
    _schema(_NESTED),
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "[ab]{2,9}(c|dd)*"}},
    {"structured_outputs": {"choice": ["yes", "yesterday", "no"]}},
    {"structured_outputs": {"grammar": 'root ::= "x" root "y" | "z"'}},
]
_CALLS: list[Body] = [
    {"tools": _TOOLS},
    {"tools": _TOOLS[:1], "parallel_tool_calls": False},
    {"tools": _TOOLS, "tool_choice": "required"},
    {"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": "b"}}},
]

_SAMPLING = st.one_of(
    st.just({"temperature": 0}),
    st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.3, 0.8, 1.5])},
        optional={
            "top_p": st.sampled_from([0.5, 0.9]),
            "top_k": st.sampled_from([1, 5, 40]),
            "min_p": st.sampled_from([0.02, 0.3]),
        },
    ),
)
_ADJUSTMENTS: st.SearchStrategy[Body] = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 1.5]),
        "frequency_penalty": st.sampled_from([-1.0, 0.8]),
        "logit_bias": st.dictionaries(
            st.sampled_from([_END_OF_TEXT, 30, 70, 71, BEGIN, END]).map(str), st.sampled_from([-100, 2, 8]), max_size=4
        ),
    },
)
_ENDS: st.SearchStrategy[Body] = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 28)},
    optional={
        "stop": st.lists(st.sampled_from(["a", "e", "12", '":', "é"]), min_size=1, max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 258), min_size=1, max_size=20),
        "ignore_eos": st.booleans(),
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """Draws one request body for a chat or a completion.

    A chat's answer begins with a reasoning trace if the prompt opens the trace or if the model writes the begin marker.
    """
    text = draw(st.sampled_from(["hm", "one two one two one two", "x" * 40]))
    is_chat = draw(st.booleans())
    body: Body = {"seed": draw(st.integers(0, 2**64 - 1)), "return_token_ids": True}
    body |= draw(_SAMPLING) | draw(_ENDS)
    if draw(st.booleans()):
        body |= draw(_ADJUSTMENTS)
    body["min_tokens"] = draw(st.sampled_from([0, 0, body["max_tokens"] // 2]))
    num_logprobs = draw(st.sampled_from([None, 0, 3]))
    if not is_chat:
        body |= {"prompt": text} | draw(st.sampled_from([{}, *_FORMATS]))
        return body if num_logprobs is None else body | {"logprobs": num_logprobs, "echo": draw(st.booleans())}
    body |= {"messages": [{"role": "user", "content": text}]} | draw(st.sampled_from([{}, *_FORMATS, *_CALLS]))
    if draw(st.booleans()):
        body["chat_template_kwargs"] = {"opened": True}
        if body["max_tokens"] > 8:
            body["thinking_token_budget"] = draw(st.integers(0, 6))
    return body if num_logprobs is None else body | {"logprobs": True, "top_logprobs": num_logprobs}
