"""`completion(model="openai/NAME", api_base="http://HOST/v1", api_key="sk_live_...")`."""

import functools
import json

import litellm
from checks import ANSWER, API_KEY, BASE_URL, MODEL, QUESTION, TOOL, assert_is_answer, raised, run

COMMON = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0}
MESSAGES = [{"role": "user", "content": QUESTION}]
LONG = {"max_tokens": 256, "temperature": 0}


def check_chat():
    """chat"""
    answer = litellm.completion(**COMMON, messages=MESSAGES, max_tokens=16, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 16


def check_streamed_chat():
    """streamed chat with usage"""
    stream = litellm.completion(
        **COMMON, messages=MESSAGES, max_tokens=16, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    answer = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert "Paris" in answer.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens > 0


def check_tools():
    """tools, whole and streamed"""
    request = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required", **LONG}
    whole = litellm.completion(**COMMON, messages=MESSAGES, parallel_tool_calls=False, **request)
    stream = litellm.completion(**COMMON, messages=MESSAGES, parallel_tool_calls=False, **request, stream=True)
    for answer in (whole, litellm.stream_chunk_builder(list(stream))):
        (call,) = answer.choices[0].message.tool_calls
        assert_is_answer(json.loads(call.function.arguments))


def check_structured_output():
    """structured output"""
    schema = {"name": "answer", "schema": ANSWER, "strict": True}
    answer = litellm.completion(
        **COMMON, messages=MESSAGES, response_format={"type": "json_schema", "json_schema": schema}, **LONG
    )
    assert_is_answer(json.loads(answer.choices[0].message.content))


def check_text_completion():
    """completions"""
    common = COMMON | {"model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(**common, prompt="The capital of France is", max_tokens=8)
    assert answer.choices[0].text


def check_responses():
    """responses"""
    answer = litellm.responses(**COMMON, input=QUESTION, max_output_tokens=16, temperature=0)
    assert "Paris" in answer.output[0].content[0].text
    assert answer.usage.output_tokens > 0


def check_errors():
    """errors"""
    refusals = {
        litellm.AuthenticationError: {"api_key": "sk_live_unknown"},
        litellm.NotFoundError: {"model": "openai/unknown"},
        litellm.BadRequestError: {"temperature": 9},
        litellm.ContextWindowExceededError: {"messages": [{"role": "user", "content": "many words " * 9000}]},
    }
    for kind, change in refusals.items():
        request = COMMON | {"messages": MESSAGES} | change
        raised(kind, functools.partial(litellm.completion, **request))


if __name__ == "__main__":
    run(globals())
