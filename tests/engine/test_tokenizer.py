"""The tokenizer of a model folder encodes and decodes text, and renders chats with the folder's template."""

import json
from pathlib import Path

import pytest

from engine.tokenizer import ChatTemplateError, Tokenizer
from tests.tiny_model import make_tiny_model

USER_ASKS = [{"role": "user", "content": "hé"}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1)


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


def text_with_special_tokens(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode()


def test_decoding_the_ids_of_a_text_returns_the_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("  a 漢 , b\n")) == "  a 漢 , b\n"


def test_a_chat_is_rendered_by_the_template_in_the_model_folder(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat(USER_ASKS)

    assert text_with_special_tokens(tokenizer, ids) == "<|start|>user\nhé<|end|>\n<|start|>assistant\n"


def test_the_generation_prompt_can_be_left_out(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat(USER_ASKS, add_generation_prompt=False)

    assert text_with_special_tokens(tokenizer, ids) == "<|start|>user\nhé<|end|>\n"


def test_special_tokens_have_a_name_but_no_text(tokenizer: Tokenizer) -> None:
    (end,) = tokenizer.eos_token_ids

    assert tokenizer.token_bytes(end) == b"<|end|>"
    assert tokenizer.is_special(end)
    assert tokenizer.decode([end]) == ""


def test_the_tokens_of_a_character_have_its_utf8_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("é ")] == [b"\xc3", b"\xa9", b" "]


def test_an_id_beyond_the_vocabulary_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_the_end_tokens_include_those_of_the_generation_config(model_dir: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))

    assert Tokenizer.load(tmp_path).eos_token_ids >= {0, 2}


def folder_with_template(model_dir: Path, folder: Path, template: str | None) -> Path:
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((model_dir / name).read_bytes())
    values = json.loads((folder / "tokenizer_config.json").read_text())
    values.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_encoding_a_chat_without_a_template_raises_an_error(model_dir: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", None))

    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.encode_chat(USER_ASKS)


def test_if_a_template_refuses_messages_the_error_contains_its_reason(model_dir: Path, tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", template))

    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        tokenizer.encode_chat(USER_ASKS)


@pytest.mark.parametrize(
    "attack", ["messages.__class__.__mro__", "messages.append(1)", "''.__class__.__subclasses__()"]
)
def test_a_template_cannot_escape_its_sandbox(model_dir: Path, tmp_path: Path, attack: str) -> None:
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", "{{ " + attack + " }}"))

    with pytest.raises(ChatTemplateError, match="unsafe"):
        tokenizer.encode_chat(USER_ASKS)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    ],
)
def test_a_template_that_computes_for_too_long_is_stopped(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr("engine.chat_rendering.RENDER_SECONDS", 0.1)
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", template))

    with pytest.raises(ChatTemplateError, match=r"takes more than 0\.1 s"):
        tokenizer.encode_chat(USER_ASKS)


def test_a_template_with_endless_recursion_is_refused(model_dir: Path, tmp_path: Path) -> None:
    template = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", template))

    with pytest.raises(ChatTemplateError, match="recursion"):
        tokenizer.encode_chat(USER_ASKS)


def test_a_template_reads_the_variables_of_a_request(model_dir: Path, tmp_path: Path) -> None:
    template = "{% if enable_thinking %}think{% else %}speak{% endif %}"
    tokenizer = Tokenizer.load(folder_with_template(model_dir, tmp_path / "m", template))

    assert tokenizer.decode(tokenizer.encode_chat(USER_ASKS, template_variables={"enable_thinking": True})) == "think"
    assert tokenizer.decode(tokenizer.encode_chat(USER_ASKS)) == "speak"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt"])
def test_reserved_template_variables_cannot_be_set_by_a_request(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"{name}.*reserved"):
        tokenizer.encode_chat(USER_ASKS, template_variables={name: "x"})
