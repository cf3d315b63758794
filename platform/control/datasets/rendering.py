"""Rows as a model reads them: its chat template and its tokenizer, without the model.

A template is a customer's program: it runs in jinja's sandbox, which lets it change nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding, Tokenizer

from control.api.errors import ApiError
from control.catalog.models import BaseModel
from control.datasets.formats import Example


@dataclass(frozen=True, slots=True)
class Rendered:
    prompt: str
    answer: str  # with the template's end of turn; empty: the row has none
    is_plain: bool  # no template has been here: the tokenizer adds what it puts in front of a text


class Renderer:
    """Made once for each model and revision: see `renderer_of`."""

    def __init__(self, folder: Path) -> None:
        """Raises: OSError, ValueError: the folder has no tokenizer that can be read."""
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer.json cannot be read: {error}") from error
        self._settings = _read_json(folder / "tokenizer_config.json")
        self._template = _template(folder, self._settings)

    def render(self, example: Example) -> Rendered:
        """Raises: ApiError: 400, the model's template refuses the messages."""
        if example.messages is None:
            return Rendered(example.prompt, example.answer or "", is_plain=True)
        prompt = self._chat(example.messages, add_generation_prompt=True)
        if example.answer is None:
            return Rendered(prompt, "", is_plain=False)
        answered = [*example.messages, {"role": "assistant", "content": example.answer}]
        whole = self._chat(answered, add_generation_prompt=False)
        # A template may rewrite earlier turns once there is an answer; the answer itself is what counts then.
        answer = whole[len(prompt) :] if whole.startswith(prompt) else example.answer
        return Rendered(prompt, answer, is_plain=False)

    def encode(self, rendered: Rendered) -> tuple[Encoding, Encoding]:
        """The prompt's tokens and the answer's."""
        prompt = self.tokenizer.encode(rendered.prompt, add_special_tokens=rendered.is_plain)
        return prompt, self.tokenizer.encode(rendered.answer, add_special_tokens=False)

    def _chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        if self._template is None:
            raise ApiError(400, "The model has no chat template: it takes prompts.", "chat_template_error", "messages")
        tokens = {name: _token(self._settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **tokens)
        # A template may stumble in its own ways over what it is given: text added to what is none, a missing key.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise ApiError(400, message[:500], "chat_template_error", "messages") from error


def renderer_of(base_model: BaseModel) -> Renderer | None:
    """None: the model's files are not on this machine, or hold no tokenizer that can be read here."""
    return _renderer(base_model.path, base_model.revision)


@lru_cache(maxsize=4)
def _renderer(path: str, revision: str) -> Renderer | None:
    try:
        return Renderer(Path(path))
    except (OSError, ValueError):
        return None


def _template(folder: Path, settings: Mapping[str, Any]) -> Template | None:
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else settings.get("chat_template")
    if isinstance(source, list):  # named ones
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _token(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value or "")


def _read_json(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} must hold an object")
    return values
