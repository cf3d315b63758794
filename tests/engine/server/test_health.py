"""The route /health checks that the engine generates tokens, and says whether its rows are exact."""

import pytest

from engine.row_invariance import RowInvariance
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import make_tool_model
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import serve
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


def test_the_health_check_generates_a_token_if_the_engine_has_generated_none_recently(tokenizer: Tokenizer) -> None:
    engine = FakeEngine()
    with serve(engine, tokenizer) as live:
        assert live.http.get("/health").status_code == 200
        assert live.http.get("/health").status_code == 200

    assert len(engine.added) == 1  # the second check relies on the token of the first
    assert engine.added[0].startswith("health-")


def test_the_health_check_detects_a_broken_idle_engine(tokenizer: Tokenizer) -> None:
    engine = FakeEngine()
    engine.broken = True
    with serve(engine, tokenizer) as live:
        health = live.http.get("/health")

    assert health.status_code == 503


def test_the_health_check_says_whether_the_engine_is_exact_and_if_not_why(tokenizer: Tokenizer) -> None:
    engine = FakeEngine()
    with serve(engine, tokenizer) as live:
        exact = live.http.get("/health")
        engine.row_invariance = RowInvariance(False, "the product down gives a row other bits")
        inexact = live.http.get("/health")

    assert (exact.json()["exact"], exact.json()["exact_reason"]) == (True, None)
    reason = "the product down gives a row other bits"
    assert (inexact.json()["exact"], inexact.json()["exact_reason"]) == (False, reason)
    assert inexact.status_code == 200  # it still serves


def test_the_health_check_states_the_formats_in_which_weights_are_stored_and_computed(tokenizer: Tokenizer) -> None:
    with serve(FakeEngine(), tokenizer) as live:
        health = live.http.get("/health").json()

    assert health["weights"] == {"format": "awq int4", "kernel": "bfloat16 (widened)"}


def test_the_health_check_says_whether_the_chat_template_supports_tools(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with_tools = Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("tools")))
    reported = []
    for one in (tokenizer, with_tools):
        with serve(FakeEngine(), one) as live:
            reported.append(live.http.get("/health").json()["tools"])

    assert reported == ["default", "template"]
