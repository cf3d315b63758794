"""`ChatOpenAI(model=NAME, base_url="http://HOST/v1", api_key="sk_live_...")`."""

from typing import Literal

import openai
from checks import API_KEY, BASE_URL, MODEL, QUESTION, assert_is_answer, raised, run
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

COMMON = {"base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0, "temperature": 0}
chat = ChatOpenAI(model=MODEL, **COMMON, max_tokens=64)


class Answer(BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    sunny: bool


@tool
def get_weather(city: Literal["Paris", "Rome"], sunny: bool) -> str:
    """Returns the weather in a city."""
    return f"{city}: {sunny}"


def check_chat():
    """chat"""
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0


def check_streamed_chat():
    """streamed chat with usage"""
    chunks = list(ChatOpenAI(model=MODEL, **COMMON, max_tokens=64, stream_usage=True).stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == chat.invoke(QUESTION).content
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) > 0


def check_tools():
    """tools"""
    bound = chat.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    (call,) = bound.invoke(QUESTION).tool_calls
    assert_is_answer(call["args"])
    assert get_weather.invoke(call).content.startswith(call["args"]["city"])


def check_structured_output():
    """structured output, through a JSON schema and through a tool call"""
    for method in ("json_schema", "function_calling"):
        assert_is_answer(chat.with_structured_output(Answer, method=method).invoke(QUESTION).model_dump())


def check_completions():
    """completions"""
    assert OpenAI(model=MODEL, **COMMON, max_tokens=8).invoke("The capital of France is")


def check_responses():
    """responses, whole and streamed"""
    responses = ChatOpenAI(model=MODEL, **COMMON, max_tokens=64, use_responses_api=True)
    whole = responses.invoke(QUESTION)
    assert "Paris" in whole.text
    assert "".join(chunk.text for chunk in responses.stream(QUESTION)) == whole.text


def check_errors():
    """errors"""
    unknown = ChatOpenAI(model="unknown", **COMMON)
    assert raised(openai.NotFoundError, lambda: unknown.invoke(QUESTION)).code == "model_not_found"


if __name__ == "__main__":
    run(globals())
