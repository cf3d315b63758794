"""A tiny model whose chat template supports tools in the format of Hermes and Qwen."""

import json
from pathlib import Path
from typing import Any

from tests.tiny_model import make_tiny_model

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{{ '\n' }}{# <tool_call> #}{% endif %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_tool_model(directory: Path, *, max_position_embeddings: int = 1024) -> Path:
    make_tiny_model(directory, "llama", max_position_embeddings=max_position_embeddings)
    path = directory / "chat_template.jinja"
    assert path.exists()
    path.write_text(TEMPLATE)
    return directory


def tool(name: str, *, parameters: Any = CITY, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters} | more}


def answer_with_call(arguments: dict[str, Any], name: str = "get_weather") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
