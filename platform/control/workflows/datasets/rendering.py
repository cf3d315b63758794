"""Renders and tokenizes rows with a model's chat template and tokenizer, without the model.

A template is a customer's program. It runs in jinja's sandbox, in which it can change nothing. The sandbox limits
neither time nor memory, so this module runs in a process that has such limits (`reader` starts it). The process does
not import Django, because the import takes a second.

    python -m control.workflows.datasets.rendering FOLDER NUM_SHOWN CPU_SECONDS < rows > readings

Rows are JSON objects, one per line, as `passes.sample_rows` writes them. With a NUM_SHOWN above 0, the process prints
one line for each row, with the row's result, which is called a reading. Otherwise it prints one line with the sums over
all rows.
"""

import json
import os
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding, Tokenizer

from control.workflows.datasets.formats import Example

UNREADABLE = 3  # exit code: the folder has no tokenizer that can be read
MEMORY_BYTES = 512 << 20  # limit of the address space; the libraries and a tokenizer of 262,144 tokens take 323 MiB
_SHOWN_CHARACTERS = 200  # a preview shows at most this many characters of a token
# Exceptions that a template may raise for its input: a wrong type, a missing key, endless recursion.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Refusal(ValueError):
    """The model's template or tokenizer refuses a row."""


@dataclass(frozen=True, slots=True)
class Rendered:
    prompt: str
    answer: str  # followed by the template's end-of-turn text; empty if the row has no answer
    is_plain: bool  # rendered without a template: the tokenizer must add its special tokens


class Renderer:
    def __init__(self, folder: Path) -> None:
        """Raises: OSError, ValueError: the folder has no tokenizer that can be read."""
        if folder.resolve() != folder:
            raise ValueError("the folder has become a symbolic link since it was checked")
        try:
            self.tokenizer = Tokenizer.from_str(_read(folder / "tokenizer.json") or "")
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer.json cannot be read: {error}") from error
        self._settings = _read_json(folder / "tokenizer_config.json")
        self._template = _template(folder, self._settings)

    def render(self, example: Example) -> Rendered:
        """Raises: Refusal."""
        if example.messages is None:
            return Rendered(example.prompt, example.answer or "", is_plain=True)
        prompt = self._chat(example.messages, add_generation_prompt=True)
        if example.answer is None:
            return Rendered(prompt, "", is_plain=False)
        answered = [*example.messages, {"role": "assistant", "content": example.answer}]
        whole = self._chat(answered, add_generation_prompt=False)
        # A template may render earlier messages differently if an answer follows; then only the answer's text is used.
        answer = whole[len(prompt) :] if whole.startswith(prompt) else example.answer
        return Rendered(prompt, answer, is_plain=False)

    def encode(self, rendered: Rendered) -> tuple[Encoding, Encoding]:
        """Returns the tokens of the prompt and the tokens of the answer. Raises: Refusal."""
        try:
            prompt = self.tokenizer.encode(rendered.prompt, add_special_tokens=rendered.is_plain)
            return prompt, self.tokenizer.encode(rendered.answer, add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise Refusal(f"The model's tokenizer refuses this row: {error}"[:500]) from error

    def _chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        if self._template is None:
            raise Refusal("The model has no chat template: it accepts prompts only, not messages.")
        tokens = {name: _token(self._settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **tokens)
        except _TEMPLATE_ERRORS as error:
            message = f"The model's chat template refuses these messages: {error or type(error).__name__}"
            raise Refusal(message[:500]) from error


def reading(renderer: Renderer, example: Example, *, num_shown: int) -> dict[str, Any]:
    """Returns the result for one row: its error, or its number of tokens and the first `num_shown` tokens."""
    try:
        rendered = renderer.render(example)
        prompt, answer = renderer.encode(rendered)
    except Refusal as error:
        return {"error": str(error), "num_tokens": 0, "num_loss_tokens": 0, "tokens": []}
    parts = ((rendered.prompt, prompt, False), (rendered.answer, answer, True))
    tokens = (
        {"id": token, "text": text[begin:end][:_SHOWN_CHARACTERS], "in_loss": is_answer}
        for text, encoding, is_answer in parts
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
    )
    num_tokens = len(prompt.ids) + len(answer.ids)
    return {
        "error": None,
        "num_tokens": num_tokens,
        "num_loss_tokens": len(answer.ids),
        "tokens": list(islice(tokens, num_shown)),
    }


def sums(renderer: Renderer, rows: Iterable[tuple[Example, int]]) -> dict[str, int]:
    """Returns the sums of tokens and bytes. A row that the template refuses counts as 0; the preview says why."""
    num_tokens = num_bytes = 0
    for example, size_bytes in rows:
        found = reading(renderer, example, num_shown=0)
        if found["error"] is None:
            num_tokens += found["num_tokens"]
            num_bytes += size_bytes
    return {"num_tokens": num_tokens, "num_bytes": num_bytes}


def main(folder: str, num_shown: int, cpu_seconds: int) -> int:
    """Reads rows from standard input and prints the results. Returns the exit code: 0, or `UNREADABLE`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    with suppress(OSError, ValueError):  # systems other than Linux may lack this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        renderer = Renderer(Path(folder))
    except (OSError, ValueError):
        return UNREADABLE
    rows = (_row(line) for line in sys.stdin)
    # Print nothing before the last row is read: the parent process does not read while it writes rows.
    if num_shown:
        results = [reading(renderer, example, num_shown=num_shown) for example, _ in rows]
    else:
        results = [sums(renderer, rows)]
    for result in results:
        print(json.dumps(result))
    return 0


def _row(line: str) -> tuple[Example, int]:
    """Returns: the example, and the size in bytes of its line in the customer's file."""
    values = json.loads(line)
    size_bytes = values.pop("size_bytes")
    return Example(custom_id=None, **values), size_bytes


def _template(folder: Path, settings: Mapping[str, Any]) -> Template | None:
    source: Any = _read(folder / "chat_template.jinja")
    if source is None:
        source = settings.get("chat_template")
    if isinstance(source, list):  # a list of named templates
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


def _read(path: Path) -> str | None:
    """Returns None if the file does not exist. Raises: OSError: a symbolic link, perhaps to another tenant's file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


def _read_json(path: Path) -> dict[str, Any]:
    values = json.loads(_read(path) or "{}")
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} must hold an object")
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
