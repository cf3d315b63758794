"""The engine's `system_fingerprint` is in responses, in the chunks of streams and in /health."""

import json
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.tokenizer import Tokenizer
from tests.engine.lora.test_adapters import make_adapter
from tests.engine.server.live import serve
from tests.tiny_model import make_tiny_model

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def test_responses_and_chunks_have_the_fingerprint_of_the_model_with_the_requests_adapter(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    engine = load_engine(folder, config=EngineConfig(max_seq_len=128))
    engine.adapters.load("adapted", make_adapter(folder, tmp_path / "adapter", ["q_proj"], rank=2))
    expected, adapted = str(engine.fingerprint()), str(engine.fingerprint("adapted"))
    with serve(engine, Tokenizer.load(folder)) as live:
        assert live.http.get("/health").json()["system_fingerprint"] == expected
        assert live.chat(max_tokens=2).json()["system_fingerprint"] == expected
        assert live.complete(max_tokens=2).json()["system_fingerprint"] == expected
        assert live.chat(max_tokens=2, model="adapted").json()["system_fingerprint"] == adapted != expected
        events = live.chat(max_tokens=2, stream=True).text.split("\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events if "{" in event]
        assert {chunk["system_fingerprint"] for chunk in chunks} == {expected}
