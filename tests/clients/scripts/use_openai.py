"""`OpenAI(base_url="http://HOST/v1", api_key="sk_live_...")`, or `OPENAI_BASE_URL` and `OPENAI_API_KEY`."""

import json

import openai
from checks import ANSWER, MODEL, QUESTION, TOOL, assert_is_answer, raised, run

client = openai.OpenAI(max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOLS = [{"type": "function", "function": TOOL}]


def check_chat():
    """chat"""
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 16
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_streamed_chat():
    """streamed chat with the same text and usage as an answer that is not streamed"""
    request = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16, "seed": 7, "temperature": 0.8}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def check_tools():
    """tools"""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=256,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == TOOL["name"]
    assert_is_answer(json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    messages = [*MESSAGES, answer.choices[0].message, result]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=16)
    assert last.usage.prompt_tokens > answer.usage.prompt_tokens


def check_streamed_tools():
    """streamed tools"""
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=256,
        temperature=0,
    ) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert_is_answer(json.loads(call.function.arguments))


def check_structured_output():
    """structured output"""
    schema = {"name": "answer", "schema": ANSWER, "strict": True}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=256,
        temperature=0,
    )
    assert_is_answer(json.loads(answer.choices[0].message.content))


def check_completions():
    """completions, whole and streamed"""
    request = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**request, logprobs=1)
    assert len(whole.choices[0].logprobs.token_logprobs) == whole.usage.completion_tokens
    chunks = list(client.completions.create(**request, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text


def check_responses():
    """responses, whole and streamed"""
    request = {"model": MODEL, "input": QUESTION, "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(**request, store=False)
    assert "Paris" in whole.output_text
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(**request) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def check_responses_with_tools():
    """responses with tools and structured output"""
    tool = {"type": "function", "strict": True, **TOOL}
    answer = client.responses.create(
        model=MODEL, input=QUESTION, tools=[tool], tool_choice="required", max_output_tokens=64
    )
    assert_is_answer(json.loads(answer.output[0].arguments))
    text = {"format": {"type": "json_schema", "name": "answer", "schema": ANSWER, "strict": True}}
    answer = client.responses.create(model=MODEL, input=QUESTION, text=text, max_output_tokens=64)
    assert_is_answer(json.loads(answer.output_text))


def check_errors():
    """errors"""
    chat = client.chat.completions.create
    unknown_key = client.with_options(api_key="sk_live_unknown")
    assert raised(openai.AuthenticationError, unknown_key.models.list).code == "invalid_api_key"
    unknown_model = raised(openai.NotFoundError, lambda: chat(model="unknown", messages=MESSAGES))
    assert unknown_model.code == "model_not_found"
    bad_parameter = raised(openai.BadRequestError, lambda: chat(model=MODEL, messages=MESSAGES, temperature=9))
    assert bad_parameter.param == "temperature"


if __name__ == "__main__":
    run(globals())
