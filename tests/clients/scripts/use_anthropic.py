"""`Anthropic(base_url="http://HOST", api_key="sk_live_...")`: the address without `/v1`."""

import anthropic
from checks import ANSWER, MODEL, QUESTION, assert_is_answer, raised, run

client = anthropic.Anthropic(max_retries=0)
REQUEST = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": QUESTION}]}
TOOLS = {
    "tools": [{"name": "get_weather", "description": "Returns the weather in a city.", "input_schema": ANSWER}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


def check_messages():
    """messages"""
    answer = client.messages.create(**REQUEST, extra_body={"temperature": 0})
    assert "Paris" in answer.content[0].text
    assert 0 < answer.usage.output_tokens <= 64
    assert answer.usage.input_tokens > 0


def check_streamed_messages():
    """streamed messages with usage"""
    with client.messages.stream(**REQUEST, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text
    assert "Paris" in text
    assert final.usage.output_tokens > 0


def check_tools():
    """tools, whole and streamed"""
    whole = client.messages.create(**REQUEST, **TOOLS)
    with client.messages.stream(**REQUEST, **TOOLS) as stream:
        final = stream.get_final_message()
    for answer in (whole, final):
        assert answer.stop_reason == "tool_use"
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        assert_is_answer(call.input)


def check_errors():
    """errors"""
    create = client.messages.create
    unknown_key = client.with_options(api_key="sk_live_unknown")
    raised(anthropic.AuthenticationError, lambda: unknown_key.messages.create(**REQUEST))
    raised(anthropic.NotFoundError, lambda: create(**(REQUEST | {"model": "unknown"})))
    raised(anthropic.BadRequestError, lambda: create(**(REQUEST | {"max_tokens": -1})))


if __name__ == "__main__":
    run(globals())
