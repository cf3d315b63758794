"""`OpenAIChatModel(NAME, provider=OpenAIProvider(base_url="http://HOST/v1", api_key="sk_live_..."))`."""

import asyncio
from typing import Literal

from checks import API_KEY, BASE_URL, MODEL, QUESTION, raised, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODELS = (OpenAIChatModel, OpenAIResponsesModel)
SHORT = {"max_tokens": 64, "temperature": 0}


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


def agent(kind, name=MODEL, **options):
    model = kind(name, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
    return Agent(model, model_settings=SHORT, **options)


def check_run():
    """an agent's answer, through chat and through responses"""
    for kind in MODELS:
        result = agent(kind).run_sync(QUESTION)
        assert "Paris" in result.output
        assert result.usage.output_tokens > 0


def check_streamed_run():
    """streamed answers with usage"""

    async def streamed(kind):
        async with agent(kind).run_stream(QUESTION) as result:
            text = "".join([delta async for delta in result.stream_text(delta=True)])
            assert "Paris" in text
            assert result.usage.output_tokens > 0

    for kind in MODELS:
        asyncio.run(streamed(kind))


def check_structured_output():
    """structured output, through a tool call and through a JSON schema"""
    for kind in MODELS:
        for output in (ToolOutput(Answer), NativeOutput(Answer)):
            answer = agent(kind, output_type=output).run_sync(QUESTION).output
            assert answer.city in ("Paris", "Rome")


def check_errors():
    """errors"""
    for kind in MODELS:
        error = raised(ModelHTTPError, lambda kind=kind: agent(kind, name="unknown").run_sync(QUESTION))
        assert error.status_code == 404
        raised(ModelContextWindowExceededError, lambda kind=kind: agent(kind).run_sync("many words " * 9000))


if __name__ == "__main__":
    run(globals())
