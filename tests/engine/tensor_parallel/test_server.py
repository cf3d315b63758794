"""A server of several ranks answers like an engine of one process, and ends if one of its ranks ends."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from engine.server.__main__ import main
from tests.engine.server.child import TOKEN, Child, running
from tests.tiny_model import make_tiny_model

PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
BODY: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "seed": 3, "return_token_ids": True}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen3", tie_word_embeddings=True)


@pytest.fixture
def server(model_dir: Path) -> Iterator[Child]:
    with running(model_dir, "--tensor-parallel", "2", "--drafter", "ngram", "--device", "cpu") as server:
        yield server


def ranks_of(server: Child) -> list[int]:
    """Returns the process ids of the ranks, in the order of the ranks."""
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def expected(model_dir: Path, temperature: float) -> Sequence[int]:
    engine = Engine(load_model(model_dir, device="cpu"), NoDrafter(), EngineConfig())
    sampling = SamplingParams(max_tokens=BODY["max_tokens"], temperature=temperature, seed=BODY["seed"])
    return generate(engine, [Request("r", tuple(PROMPT), sampling)])[0].token_ids


def test_a_server_of_two_ranks_answers_like_one_process_and_ends_with_a_killed_rank(
    server: Child, model_dir: Path
) -> None:
    with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        for temperature in (0.0, 0.8):
            answer = http.post("/v1/completions", json=BODY | {"temperature": temperature}).json()
            assert answer["choices"][0]["token_ids"] == list(expected(model_dir, temperature))
        pids = ranks_of(server)
        assert len(pids) == 2
        assert server.ready["pid"] in pids

        body = BODY | {"stream": True, "max_tokens": 900, "ignore_eos": True}
        with http.stream("POST", "/v1/completions", json=body) as response:
            chunks = response.iter_lines()
            assert next(chunks).startswith("data: ")
            os.kill(pids[1], signal.SIGKILL)
            with suppress(httpx2.HTTPError):  # no error if the whole answer has arrived before the kill
                list(chunks)

    output, _ = server.process.communicate(timeout=60)
    failure = json.loads(output.splitlines()[-1])
    assert (failure["event"], failure["code"]) == ("failed", "rank_lost")
    assert failure["message"] == "rank 1 of 2 was killed by SIGKILL, so the group was ended"
    assert server.process.returncode == 1


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--tensor-parallel", "3"], "tensor_parallel_unsupported", "4 query heads on 2 KV heads cannot be divided"),
        (["--tensor-parallel", "2", "--device", "cuda"], "tensor_parallel_not_run_on_cuda", "never been run on GPUs"),
        (["--tensor-parallel", "2", "--memory-bytes", "100000000"], "does_not_fit", "needs"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_before_a_rank_starts(
    model_dir: Path,
    options: list[str],
    code: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--model-dir", str(model_dir), "--model-name", "tiny", "--port", "0", "--device", "cpu", *options]
    monkeypatch.setattr("sys.argv", ["server", *given])
    monkeypatch.setattr("engine.server.__main__.log_to_stderr", lambda: None)
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("the parent process was started"))
    with pytest.raises(SystemExit) as ended:
        main()
    failure = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    assert (failure["event"], failure["code"]) == ("failed", code)
    assert reason in failure["message"]
