"""The routes for operators: they swap the drafter and load or unload adapters while the server runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.errors import SpeculatorNotLoadable
from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, TOKEN, Live, serve
from tests.engine.server.test_app import error_of
from tests.tiny_model import make_tiny_model

OPERATOR = "secret-of-the-operator"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


def load_drafter(kind: str, folder: Path | None) -> Drafter:
    if kind not in ("none", "ngram", "medusa") or (folder is not None and folder.name == "broken"):
        raise SpeculatorNotLoadable(f"no such speculator: {kind} {folder}")
    return NoDrafter() if kind == "none" else NgramDrafter()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "broken"):
        (tmp_path / "root" / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "root"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def live(engine: FakeEngine, tokenizer: Tokenizer, root: Path) -> Iterator[Live]:
    settings: dict[str, Any] = {"operator_token": OPERATOR, "speculator_root": root, "adapter_root": root}
    with serve(engine, tokenizer, load_drafter=load_drafter, **settings) as live:
        yield live


def post(live: Live, route: str, /, token: str = OPERATOR, **body: Any) -> httpx2.Response:
    return live.http.post(route, json=body, headers={"authorization": f"Bearer {token}"})


def get(live: Live, path: str) -> httpx2.Response:
    return live.http.get(path, headers={"authorization": f"Bearer {OPERATOR}"})


def test_after_a_swap_only_the_acceptance_of_the_new_drafter_is_reported(live: Live, engine: FakeEngine) -> None:
    live.complete("hello")
    before = get(live, "/v1/speculator").json()

    swapped = post(live, "/v1/speculator", drafter="ngram")
    live.complete("hello")
    after = get(live, "/v1/speculator").json()

    assert (before["drafter"], before["metrics"]["speculative_decoding"]["num_spec_steps"]) == ("none", 3)
    assert swapped.status_code == 200
    assert (engine.drafter.name, after["drafter"], after["path"]) == ("ngram", "ngram", None)
    assert after["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 3] + [0] * (engine.drafter.max_depth - 1),
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 6,
        "num_spec_tokens": engine.drafter.max_depth,
    }


def test_a_speculator_is_loaded_from_a_folder_below_the_root(live: Live, root: Path) -> None:
    swapped = post(live, "/v1/speculator", drafter="medusa", path="one").json()

    assert swapped["path"] == str(root / "one")
    assert post(live, "/v1/speculator", drafter="medusa", path=str(root / "one")).status_code == 200


@pytest.mark.parametrize("path", ["..", "../outside", "/", "link", "missing", "", "a\0b", "x" * 5000, 5])
@pytest.mark.parametrize("route", ["/v1/speculator", "/v1/load_lora_adapter"])
def test_paths_that_are_no_folder_below_the_root_are_refused(
    live: Live, engine: FakeEngine, route: str, path: Any
) -> None:
    body = {"drafter": "medusa", "path": path} if "speculator" in route else {"lora_name": "a", "lora_path": path}

    refused = post(live, route, **body)

    assert refused.status_code == 400
    assert error_of(refused)["param"] in ("path", "lora_path")
    assert (engine.drafter.name, engine.adapters.names) == ("none", ())


@pytest.mark.parametrize("body", [{"drafter": "unheard"}, {"drafter": "medusa", "path": "broken"}, {}])
def test_the_current_drafter_stays_if_a_speculator_cannot_be_loaded(
    live: Live, engine: FakeEngine, body: dict[str, Any]
) -> None:
    post(live, "/v1/speculator", drafter="ngram")

    refused = post(live, "/v1/speculator", **body)

    assert (refused.status_code, error_of(refused)["code"]) == (400, "speculator_not_loadable")
    assert engine.drafter.name == "ngram"


def test_requests_can_name_an_adapter_until_it_is_unloaded(live: Live, engine: FakeEngine) -> None:
    loaded = post(live, "/v1/load_lora_adapter", lora_name="fr", lora_path="one")
    listed = live.http.get("/v1/models").json()["data"]
    answered = live.complete(model="fr").json()
    unloaded = post(live, "/v1/unload_lora_adapter", lora_name="fr")

    assert (loaded.status_code, unloaded.status_code) == (200, 200)
    assert [(model["id"], model["parent"]) for model in listed] == [(MODEL, None), ("fr", MODEL)]
    assert (answered["model"], engine.requested_adapters) == ("fr", ["fr"])
    assert live.complete(model="fr").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"lora_name": "fr", "lora_path": "one"}, 409, "name_taken"),
        ({"lora_name": MODEL, "lora_path": "one"}, 409, "name_taken"),
        ({"lora_name": "de", "lora_path": "broken"}, 400, "adapter_not_loadable"),
        ({"lora_name": "a b", "lora_path": "one"}, 400, "invalid_value"),
        ({"lora_name": "de"}, 400, "invalid_value"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_refused(live: Live, body: dict[str, Any], status: int, code: str) -> None:
    post(live, "/v1/load_lora_adapter", lora_name="fr", lora_path="one")

    refused = post(live, "/v1/load_lora_adapter", **body)

    assert (refused.status_code, error_of(refused)["code"]) == (status, code)


def test_unloading_an_unknown_adapter_gets_404(live: Live) -> None:
    refused = post(live, "/v1/unload_lora_adapter", lora_name="fr")

    assert (refused.status_code, error_of(refused)["code"]) == (404, "adapter_not_found")


def test_the_operator_token_and_the_client_token_are_each_valid_only_for_their_routes(live: Live) -> None:
    assert post(live, "/v1/speculator", token=TOKEN, drafter="none").status_code == 401
    assert post(live, "/v1/load_lora_adapter", token="wrong", lora_name="a").status_code == 401
    assert get(live, "/v1/models").status_code == 401


def test_without_an_operator_token_there_are_no_operator_routes(tokenizer: Tokenizer) -> None:
    with serve(FakeEngine(), tokenizer) as live:
        assert post(live, "/v1/speculator", token=TOKEN, drafter="none").status_code == 404
        # A wrong token gets 401 on every route, even on a route that does not exist.
        assert post(live, "/v1/speculator", drafter="none").status_code == 401


def test_without_a_speculator_root_no_speculator_folder_can_be_loaded(tokenizer: Tokenizer) -> None:
    with serve(FakeEngine(), tokenizer, load_drafter=load_drafter, operator_token=OPERATOR) as live:
        refused = post(live, "/v1/speculator", drafter="medusa", path="one")
        without_folder = post(live, "/v1/speculator", drafter="ngram")

    assert "--speculator-root" in error_of(refused)["message"]
    assert without_folder.status_code == 200


def test_swapping_the_drafter_during_a_stream_does_not_change_its_text(engine: FakeEngine, live: Live) -> None:
    with live.http.stream("POST", "/v1/completions", json={"prompt": "hello", "stream": True}) as response:
        lines = response.iter_lines()
        received = [next(lines)]
        assert post(live, "/v1/speculator", drafter="ngram").status_code == 200
        received += lines

    text = "".join(
        httpx2.Response(200, content=line[6:]).json()["choices"][0]["text"] for line in received if "{" in line
    )
    assert text == "hello"
