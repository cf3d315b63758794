"""Gemma 3 agrees with transformers beyond its sliding windows, and its answers are equal with every drafter."""

from pathlib import Path

import pytest
import torch

from engine.drafters.none import NoDrafter
from engine.load import load_model
from tests.engine.drafters import every_drafter
from tests.engine.test_equality import SAMPLINGS, answers_only, complete, make_requests
from tests.engine.test_parity import difference
from tests.tiny_model import make_tiny_model

WINDOW = 20
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


def make_gemma(folder: Path, window: int = WINDOW) -> Path:
    """Makes a model with sliding and full attention layers; the two kinds use different rotary bases."""
    return make_tiny_model(folder, "gemma3_text", num_layers=3, sliding_window=window, layer_types=KINDS)


@pytest.mark.parametrize("window", [1, 16, 17, WINDOW])
def test_logits_agree_with_transformers_beyond_the_window(tmp_path: Path, window: int) -> None:
    assert difference(make_gemma(tmp_path, window), length=90) <= 1e-4


def test_the_window_changes_hidden_states_beyond_it_but_does_not_limit_the_context(tmp_path: Path) -> None:
    narrow, wide = make_gemma(tmp_path / "a"), make_gemma(tmp_path / "b", 1024)
    model = load_model(narrow)
    assert model.max_positions == 1024
    token_ids = torch.arange(60)
    states, wide_states = (load_model(folder).hidden_states(token_ids).final for folder in (narrow, wide))
    assert torch.equal(states[:WINDOW], wide_states[:WINDOW])
    assert not torch.allclose(states[WINDOW:], wide_states[WINDOW:], atol=1e-2)


def test_answers_are_equal_with_every_drafter(tmp_path: Path) -> None:
    model = load_model(make_gemma(tmp_path / "m"), dtype="bfloat16")
    draft_model = load_model(make_tiny_model(tmp_path / "d", "llama", seed=1, num_layers=1))
    requests = make_requests(model, SAMPLINGS["top-p"], count=4, max_tokens=12)
    plain = complete(model, NoDrafter(), requests, max_batch_size=1)
    for drafter in every_drafter(model, draft_model, {c.request_id: c.token_ids for c in plain}):
        drafted = complete(model, drafter, requests, max_batch_size=3, prefill_chunk=7, draft_budget=12)
        assert answers_only(drafted) == answers_only(plain), drafter.name
