"""`OpenAIResponsesModel(model=NAME, openai_client=AsyncOpenAI(...))`, or `OpenAIChatCompletionsModel`;
`set_tracing_disabled(True)`, because tracing sends to OpenAI."""

import asyncio
from typing import Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import MODEL, QUESTION, raised, run
from pydantic import BaseModel

set_tracing_disabled(True)
MODELS = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
SHORT = ModelSettings(max_tokens=256, temperature=0)


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


@function_tool
def get_weather(city: Literal["Paris", "Rome"], sunny: bool) -> str:
    """Returns the weather in a city."""
    return f"It is {'sunny' if sunny else 'rainy'} in {city}."


def agent(kind, name=MODEL, **options):
    model = kind(model=name, openai_client=openai.AsyncOpenAI(max_retries=0))
    return Agent(name="Guide", model=model, **({"model_settings": SHORT} | options))


def check_run():
    """an agent's answer, through responses and through chat"""
    for kind in MODELS:
        result = Runner.run_sync(agent(kind), QUESTION)
        assert "Paris" in result.final_output
        assert result.context_wrapper.usage.output_tokens > 0


def check_streamed_run():
    """streamed answers"""

    async def streamed(kind):
        result = Runner.run_streamed(agent(kind), QUESTION)
        events = [event async for event in result.stream_events() if event.type == "raw_response_event"]
        deltas = [event.data.delta for event in events if event.data.type == "response.output_text.delta"]
        assert "".join(deltas) == result.final_output

    for kind in MODELS:
        asyncio.run(streamed(kind))


def check_tools():
    """a tool that is called, and its result in the next turn"""
    for kind in MODELS:
        settings = ModelSettings(max_tokens=256, temperature=0, tool_choice="required", parallel_tool_calls=False)
        caller = agent(kind, instructions="Answer briefly.", tools=[get_weather], model_settings=settings)
        result = Runner.run_sync(caller, QUESTION, max_turns=8)
        outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
        assert outputs[0].startswith("It is ")
        assert result.final_output


def check_structured_output():
    """structured output"""
    for kind in MODELS:
        answer = Runner.run_sync(agent(kind, output_type=Answer), QUESTION).final_output
        assert answer.city in ("Paris", "Rome")


def check_errors():
    """errors"""
    for kind in MODELS:
        raised(openai.NotFoundError, lambda kind=kind: Runner.run_sync(agent(kind, name="unknown"), QUESTION))


if __name__ == "__main__":
    run(globals())
