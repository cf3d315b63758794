"""`instructor.from_openai(OpenAI(...), mode=...)`. JSON and MD_JSON use no grammar: models must follow the schema."""

from typing import Literal

import instructor
import openai
from checks import MODEL, QUESTION, raised, run
from instructor.core import InstructorRetryException
from pydantic import BaseModel


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]
    sunny: bool


class Person(BaseModel):
    name: str
    age: int


def extracted(mode):
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=mode)
    answer, completion = client.chat.completions.create_with_completion(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Answer,
        max_tokens=256,
        temperature=0,
        max_retries=0,
    )
    assert completion.usage.completion_tokens > 0
    return answer.model_dump()


def check_tools():
    """mode TOOLS"""
    return extracted(instructor.Mode.TOOLS)


def check_json_schema():
    """mode JSON_SCHEMA"""
    return extracted(instructor.Mode.JSON_SCHEMA)


def person(mode):
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=mode)
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Jason is 25 years old. Give his name and his age."}],
        response_model=Person,
        max_tokens=128,
        temperature=0,
        max_retries=3,
    ).model_dump()


def check_json():
    """mode JSON"""
    return person(instructor.Mode.JSON)


def check_md_json():
    """mode MD_JSON"""
    return person(instructor.Mode.MD_JSON)


def check_streamed():
    """streamed partial objects"""
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            response_model=Answer,
            max_tokens=256,
            temperature=0,
        )
    )
    assert parts[-1].city in ("Paris", "Rome")


def check_errors():
    """errors"""
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
    request = {"messages": [{"role": "user", "content": QUESTION}], "response_model": Answer, "max_retries": 0}
    error = raised(InstructorRetryException, lambda: client.chat.completions.create(model="unknown", **request))
    assert "unknown" in str(error)


if __name__ == "__main__":
    run(globals())
