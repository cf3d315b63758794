"""Tests of reading labelled rows: the tokens that have a loss, and the errors that name a line."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.fields import Fields
from engine.openai.requests import encode_messages
from engine.openai.tools import parse_tools
from engine.tokenizer import Tokenizer
from tests.workers.support import write_lines
from tests.workers.training.lora.spec import labelled
from workers.failures import InvalidInputError
from workers.training.lora.rows import LabelledRows, read_labelled_rows


def read(folder: Path, model: Path, rows: list[dict[str, Any]], **options: Any) -> LabelledRows:
    path = write_lines(folder / "rows.jsonl", rows)
    limits: dict[str, Any] = {"max_tokens": 200, "long_rows": "refuse"} | options
    return read_labelled_rows(path, Tokenizer.load(model), name="training_file", **limits)


def test_only_the_last_answer_up_to_its_end_token_has_a_loss(tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    messages = [*labelled("a", "first")["messages"], *labelled("b", "second")["messages"]]
    row = read(tmp_path, tiny_model, [{"messages": messages}]).rows[0]
    assert list(row.tokens[: row.num_prompt]) == tokenizer.encode_chat(messages[:-1])
    answer = tokenizer.decode(row.tokens[row.num_prompt :], skip_special_tokens=False)
    assert answer == "second<|end|>"


def test_parts_of_a_content_are_joined_and_weights_are_not_rendered(tmp_path: Path, tiny_model: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    in_parts = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "c", "weight": 1}]}
    rows = read(tmp_path, tiny_model, [in_parts, labelled("a\nb", "c")]).rows
    assert rows[0] == rows[1]


def test_a_call_of_a_tool_is_a_label_as_the_engine_renders_it(tmp_path: Path, tiny_model: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "a"}]
    row = {"messages": [*asked, {"role": "assistant", "content": None, "tool_calls": [call]}], "tools": [tool]}
    tokenizer = Tokenizer.load(tiny_model)

    found = read(tmp_path, tiny_model, [row], max_tokens=1000).rows[0]

    fields = Fields({"messages": asked, "tools": [tool]})
    prompt = encode_messages(fields, tokenizer=tokenizer, use=parse_tools(fields))
    assert tuple(found.tokens[: found.num_prompt]) == prompt
    answer = tokenizer.decode(found.tokens[found.num_prompt :], skip_special_tokens=False)
    assert answer == '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|end|>'


BAD: dict[str, dict[str, Any]] = {
    "missing_label": {"messages": [{"role": "user", "content": "a"}]},
    "missing_messages": {"prompt": "a", "completion": "b"},
    "missing_prompt": {"messages": [{"role": "assistant", "content": "b"}]},
    "special_token": labelled("a", "<|start|>assistant\nb<|end|>"),
    "invalid_value": {
        "messages": [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "b"}]
    },
    "row_too_long": labelled("a", "b" * 300),
}


@pytest.mark.parametrize("code", BAD)
def test_an_error_names_the_line(tmp_path: Path, tiny_model: Path, code: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^training_file: line 2: ") as caught:
        read(tmp_path, tiny_model, [labelled("a", "b"), BAD[code], labelled("a", "b")])
    assert caught.value.code == code


@pytest.mark.parametrize("label", ["", None])
def test_an_empty_label_is_refused(tmp_path: Path, tiny_model: Path, label: str | None) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": label}]}
    with pytest.raises(InvalidInputError, match="line 1: the last message must be the label"):
        read(tmp_path, tiny_model, [row])


def test_a_label_of_weight_zero_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}
    with pytest.raises(InvalidInputError, match="line 1: the last message is the label, so its weight cannot be 0"):
        read(tmp_path, tiny_model, [row])


def test_a_long_row_is_cut_and_counted_if_its_prompt_leaves_room(tmp_path: Path, tiny_model: Path) -> None:
    found = read(tmp_path, tiny_model, [labelled("a", "b" * 300), labelled("a", "b")], long_rows="cut")
    assert [len(row.tokens) for row in found.rows] == [200, 22]
    assert found.num_cut == 1
    with pytest.raises(InvalidInputError, match=r"line 1: the prompt has .* so no label is left within 200"):
        read(tmp_path, tiny_model, [labelled("a" * 300, "b")], long_rows="cut")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}",
            "does not render the answer as a continuation of the prompt",
        ),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not end an answer with an end-of-sequence token"),
        ("{{ raise_exception('no chats') }}", "refuses these messages: no chats"),
    ],
)
def test_a_model_whose_template_does_not_fit_the_rows_is_refused(
    tmp_path: Path, tiny_model: Path, template: str, message: str
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidInputError, match=message) as caught:
        read(tmp_path, model, [labelled("a", "b")])
    assert caught.value.code == "chat_template"


def test_an_empty_file_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InvalidInputError, match="training_file: the file has no rows"):
        read(tmp_path, tiny_model, [])
