"""A sleeping engine gives its memory back; after it wakes, its weights and answers are the same as before."""

import os
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request
from engine.sleep import Sleeper
from tests.engine.drafters import every_drafter
from tests.engine.test_equality import SAMPLINGS, answers_only, make_requests
from tests.tiny_model import make_tiny_model

MEGABYTES = 64
PAGE = os.sysconf("SC_PAGE_SIZE")


def nap(engine: Engine, folder: Path) -> None:
    sleeper = Sleeper(engine, folder=folder)
    assert sleeper.sleep() > 0
    sleeper.wake()


def answers(engine: Engine, requests: list[Request]) -> list[tuple[object, ...]]:
    return answers_only(generate(engine, requests))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", hidden_size=128)


def tiny(model_dir: Path, weights: str = "auto") -> Model:
    return load_model(model_dir, dtype="float32" if weights == "auto" else "bfloat16", weights=weights)


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_answers_before_and_after_sleep_are_equal(model_dir: Path, tmp_path: Path, weights: str) -> None:
    model = tiny(model_dir, weights)
    engine = Engine(model, NoDrafter(), EngineConfig(weights=weights))
    requests = make_requests(model, SAMPLINGS["top-p"], count=4, max_tokens=24)
    before = answers(engine, requests)

    nap(engine, tmp_path)

    assert answers(engine, requests) == before


def test_each_drafter_drafts_the_same_after_sleep(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "model", "llama"), dtype="float32")
    draft_model = load_model(make_tiny_model(tmp_path / "draft", "llama", seed=1, num_layers=1))
    requests = make_requests(model, SAMPLINGS["T=0.8"], count=4, max_tokens=24)
    plain = generate(Engine(model, NoDrafter(), EngineConfig()), requests)
    tokens_of = {completion.request_id: completion.token_ids for completion in plain}
    for drafter in every_drafter(model, draft_model, tokens_of):
        engine = Engine(model, drafter, EngineConfig(draft_budget=15))
        generate(engine, requests)  # after this call, drafters that copy past answers know these answers
        engine.scheduler.pool.forget_prefixes()
        before = generate(engine, requests)

        nap(engine, tmp_path)
        after = generate(engine, requests)

        assert answers_only(after) == answers_only(plain), drafter.name
        if drafter.name in ("medusa", "draft_model", "block", "mtp"):  # their drafts depend only on weights
            assert [c.speculation for c in after] == [c.speculation for c in before], drafter.name


def test_a_sleeping_engine_holds_neither_its_weights_nor_its_cache(model_dir: Path, tmp_path: Path) -> None:
    engine = Engine(tiny(model_dir), NoDrafter(), EngineConfig())
    weight = torch.ones(MEGABYTES << 18)  # stands for a weight that some object of the process holds
    engine.cache.keys.append(torch.ones(MEGABYTES << 18))  # stands for a KV cache in use
    sleeper = Sleeper(engine, folder=tmp_path)
    awake = resident_bytes()

    num_saved = sleeper.sleep()
    asleep = resident_bytes()
    is_zero = not engine.cache.keys[-1][PAGE:-PAGE].any()  # the first and last page may hold other tensors too
    sleeper.wake()

    assert awake - asleep > (2 * MEGABYTES - 8) << 20
    assert num_saved > (MEGABYTES - 1) << 20
    assert is_zero
    assert bool((weight == 1).all())


def test_cached_prefixes_are_forgotten_during_sleep(model_dir: Path, tmp_path: Path) -> None:
    engine = Engine(tiny(model_dir), NoDrafter(), EngineConfig())
    long = Request("long", (5, 6, 7) * 40, make_requests(engine.model, {"temperature": 0.0}, count=1)[0].sampling)
    generate(engine, [long])
    generate(engine, [long])
    hits = engine.counters.prefix_hits
    assert hits > 0, "the prefix is cached before the sleep"

    nap(engine, tmp_path)
    generate(engine, [long])

    assert engine.counters.prefix_hits == hits


def test_a_failed_sleep_leaves_the_engine_awake(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny(model_dir), NoDrafter(), EngineConfig())
    requests = make_requests(engine.model, SAMPLINGS["greedy"], count=2, max_tokens=8)
    before = answers(engine, requests)
    sleeper = Sleeper(engine, folder=tmp_path)
    with monkeypatch.context() as full:
        full.setattr("engine.sleep.os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "the disk is full")))
        with pytest.raises(OSError, match="the disk is full"):
            sleeper.sleep()

    assert not sleeper.is_asleep
    assert answers(engine, requests) == before
