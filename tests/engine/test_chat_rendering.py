"""A chat template that takes too much memory or time fails without affecting other chats, and the rendering process
stays within its limits."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from engine.chat_rendering import MEMORY_BYTES, Chat, ChatRendering, TemplateRefusal, chat_rendering
from engine.tokenizer import ChatTemplateError, Tokenizer
from tests.tiny_model import make_tiny_model

PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
BOMBS = {
    "a long string": "{{ 'x' * 10 ** 10 }}",
    "a long list": "{{ [1] * 10 ** 10 }}",
    "a padded string": "{{ 'x'.ljust(10 ** 10) }}",
    "a wide number": "{{ '%0*d' % (10 ** 10, 1) }}",
    "a large number": "{{ 10 ** (10 ** 9) }}",
    "a doubled string": (
        "{% set ns = namespace(x='x') %}{% for _ in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "a long text": "{% for _ in range(99999) %}{% for _ in range(999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
    "filler": "{{ lipsum(n=10 ** 8) }}",
    "a text above the limit": "{{ 'x' * 20000000 }}",
}


def chat(template: str, content: str = "hé", **variables: Any) -> Chat:
    messages = [{"role": "user", "content": content}]
    return Chat(template=template, messages=messages, tools=None, add_generation_prompt=True, variables=variables)


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.chat_rendering.RENDER_SECONDS", 3.0)


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS.keys())
def test_a_template_bomb_fails_alone_within_bounded_memory(template: str) -> None:
    rendering = chat_rendering()
    assert rendering.render(chat(PLAIN)) == "hé"
    assert rendering.pid is not None
    before = resident_bytes(rendering.pid)

    with pytest.raises(TemplateRefusal, match=r"takes too much memory|takes more than 3 s|renders more than"):
        rendering.render(chat(template))

    if rendering.pid is not None:  # a bomb that takes too long ends the process
        assert resident_bytes(rendering.pid) - before <= MEMORY_BYTES
    assert rendering.render(chat(PLAIN, "next")) == "next"


def test_a_template_bomb_only_delays_the_chats_of_other_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        bomb = pool.submit(chat_rendering().render, chat(BOMBS["a large number"]))
        others = [pool.submit(chat_rendering().render, chat(PLAIN, f"chat {index}")) for index in range(12)]
        assert [other.result() for other in others] == [f"chat {index}" for index in range(12)]
        with pytest.raises(TemplateRefusal):
            bomb.result()


def test_a_killed_rendering_process_is_started_again() -> None:
    rendering = chat_rendering()
    rendering.render(chat(PLAIN))
    assert rendering.pid is not None
    os.kill(rendering.pid, signal.SIGKILL)

    assert rendering.render(chat(PLAIN)) == "hé"


def test_the_rendering_process_inherits_no_environment_variables_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLIPSTREAM_ENGINE_TOKEN", "secret")
    rendering = ChatRendering()
    rendering.render(chat(PLAIN))

    assert "SLIPSTREAM" not in Path(f"/proc/{rendering.pid}/environ").read_text()
    rendering.close()


def test_a_chat_is_encoded_into_the_same_tokens_as_by_transformers(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", num_layers=1)
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ eos_token }}{% for m in messages %}{{ m | tojson }}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfor %}{{ tools | tojson if tools }}{% if thinking %}<|start|>{% endif %}"
    )
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hé \u2028 <|end|>", "name": None},
        {"role": "assistant", "content": "b"},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    reference = AutoTokenizer.from_pretrained(folder)

    ids = Tokenizer.load(folder).encode_chat(messages, tools=tools, template_variables={"thinking": True})

    expected = reference.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False, thinking=True
    )
    assert ids == expected


def test_a_template_bomb_in_a_model_folder_raises_a_chat_template_error(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", num_layers=1)
    (folder / "chat_template.jinja").write_text(BOMBS["a long string"])

    with pytest.raises(ChatTemplateError, match="the model's chat template takes too much memory"):
        Tokenizer.load(folder).encode_chat([{"role": "user", "content": "a"}])
