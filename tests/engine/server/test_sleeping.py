"""The routes /sleep and /wake, with which an operator puts the engine to sleep and wakes it."""

import threading
from collections.abc import Iterator

import httpx2
import pytest

from engine.errors import SleepNotSupported
from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import TOKEN, Live, serve, wait_until
from tests.engine.server.test_app import error_of
from tests.tiny_model import make_tiny_model

OPERATOR = "secret-of-the-operator"


class FakeSleeper:
    def __init__(self) -> None:
        self.is_asleep = False
        self.problem: Exception | None = None

    def check(self) -> None:
        if isinstance(self.problem, SleepNotSupported):
            raise self.problem

    def sleep(self) -> int:
        if self.problem is not None:
            raise self.problem
        self.is_asleep = True
        return 1

    def wake(self) -> None:
        if self.problem is not None:
            raise self.problem
        self.is_asleep = False


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


@pytest.fixture
def sleeper() -> FakeSleeper:
    return FakeSleeper()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def live(engine: FakeEngine, tokenizer: Tokenizer, sleeper: FakeSleeper) -> Iterator[Live]:
    with serve(engine, tokenizer, sleeper=sleeper, operator_token=OPERATOR) as live:
        yield live


def test_an_engine_that_was_used_within_idle_seconds_does_not_sleep(live: Live) -> None:
    live.complete("hello")
    refused = post(live, "/sleep?idle_seconds=3600")
    malformed = [post(live, f"/sleep?idle_seconds={value}").status_code for value in ("x", "-1", "nan", "inf")]
    slept = post(live, "/sleep?idle_seconds=0")
    post(live, "/wake")
    woken = post(live, "/sleep?idle_seconds=3600")

    assert (refused.status_code, error_of(refused)["code"]) == (409, "engine_in_use")
    assert malformed == [400] * 4
    assert slept.json()["state"] == "asleep"
    assert error_of(woken)["code"] == "engine_in_use", "waking counts as use, because a request follows"


def test_health_reports_the_number_of_open_requests_and_the_seconds_since_the_last_use(
    live: Live, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> dict[str, float]:
        return dict(live.http.get("/health").json()["load"])

    live.app.async_engine.used_at -= 100.0
    monkeypatch.setattr("engine.server.health.FRESH_SECONDS", 0.0)  # makes every check generate a token
    assert load()["idle_seconds"] >= 100.0
    assert load()["idle_seconds"] >= 100.0, "a health check does not count as use"

    engine.gate.clear()
    running = threading.Thread(target=live.complete, args=("hello",))
    running.start()
    wait_until(lambda: live.app.async_engine.num_in_use > 0)
    busy = load()
    engine.gate.set()
    running.join(10)

    assert busy == {"open": 1, "idle_seconds": 0.0}
    assert load()["idle_seconds"] < 100.0


def post(live: Live, path: str, token: str = OPERATOR) -> httpx2.Response:
    return live.http.post(path, headers={"authorization": f"Bearer {token}"})


def state(live: Live) -> str:
    health = live.http.get("/health")
    assert health.status_code == 200
    return str(health.json()["sleep"]["state"])


def test_a_sleeping_engine_refuses_requests_until_it_is_woken(live: Live) -> None:
    before = live.complete("hello").json()["choices"]
    assert post(live, "/sleep").json()["state"] == "asleep"
    assert post(live, "/sleep").json()["state"] == "asleep"

    refused = live.complete("hello")
    swap = live.http.post("/v1/speculator", json={"drafter": "none"}, headers={"authorization": f"Bearer {OPERATOR}"})

    assert (refused.status_code, error_of(refused)["code"], refused.headers["retry-after"]) == (
        503,
        "engine_asleep",
        "1",
    )
    assert (swap.status_code, error_of(swap)["code"]) == (503, "engine_asleep")
    assert state(live) == "asleep"
    assert "slipstream:engine_asleep" in live.http.get("/metrics").text
    woken = post(live, "/wake").json()
    assert woken["state"] == "awake"
    assert woken["wake_seconds"] >= 0
    assert live.complete("hello").json()["choices"] == before


def test_running_requests_end_before_the_engine_sleeps(live: Live, engine: FakeEngine, sleeper: FakeSleeper) -> None:
    engine.gate.clear()
    answers: list[httpx2.Response] = []
    running = threading.Thread(target=lambda: answers.append(live.complete("hello")))
    running.start()
    wait_until(lambda: live.app.async_engine.num_open > 0)
    asleep = threading.Thread(target=post, args=(live, "/sleep"))
    asleep.start()
    wait_until(lambda: state(live) == "falling_asleep")

    refused = live.complete("another")
    slept_early = sleeper.is_asleep
    engine.gate.set()
    running.join(10)
    asleep.join(10)

    assert refused.status_code == 503
    assert not slept_early
    assert [answer.status_code for answer in answers] == [200]
    assert sleeper.is_asleep


def test_the_engine_stays_awake_if_sleep_fails_and_asleep_if_wake_fails(live: Live, sleeper: FakeSleeper) -> None:
    sleeper.problem = OSError(28, "no space")
    assert post(live, "/sleep").status_code == 500
    assert live.complete("hello").status_code == 200
    sleeper.problem = None
    post(live, "/sleep")
    sleeper.problem = OSError(5, "no disk")
    assert post(live, "/wake").status_code == 500
    assert state(live) == "asleep"
    sleeper.problem = None
    assert post(live, "/wake").status_code == 200
    assert live.complete("hello").status_code == 200


def test_sleep_is_refused_without_the_operators_token_and_on_unsupported_devices(
    live: Live, sleeper: FakeSleeper
) -> None:
    assert post(live, "/sleep", TOKEN).status_code == 401
    sleeper.problem = SleepNotSupported("not on this device")
    refused = post(live, "/sleep")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "sleep_not_supported")
    assert live.complete("hello").status_code == 200
