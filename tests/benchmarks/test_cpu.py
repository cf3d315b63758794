"""`make bench-cpu` compares arms and judges claims about their speeds. These tests need no other engine.

An arm is an engine with a drafting method. A claim states how many times as fast one arm is as another.
"""

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from benchmarks import arms, cpu
from benchmarks.arms import Arm, Process
from benchmarks.claims import Claim, claims, judge
from benchmarks.peers import install
from benchmarks.peers.install import Environment, PeerMissing
from benchmarks.peers.wire import Advance, Answers, Job, closed_loop
from benchmarks.samples import Sample, Samples, Spread
from tests.tiny_model import make_tiny_model


def sample(arm: str, number: int, speed: float, *, batch_size: int = 1, own_plain: str = "slipstream plain") -> Sample:
    return Sample(
        arm=arm,
        own_plain=own_plain,
        weights="bf16",
        batch_size=batch_size,
        round=number,
        tokens_per_second=speed,
        tokens=10,
        seconds=10 / speed,
        ttft_seconds=0.1,
        prefill_seconds=None,
        acceptance_length=None,
        prompts=1,
        equal=None,
        load_average=0.0,
    )


def claim(at_least: float, *, each: bool = False) -> Claim:
    """Returns the claim that n-gram or suffix decoding reaches `at_least` times the speed of plain decoding.

    With `each`, both methods must reach this speed; otherwise, it is enough if the faster one does.
    """
    arms = ("slipstream ngram", "slipstream suffix")
    return Claim(text="faster", batch_size=1, at_least=at_least, arms=arms, over=("slipstream plain",), each=each)


def test_a_ratio_compares_the_speeds_of_the_same_round() -> None:
    speeds = [(100.0, 50.0), (10.0, 5.0), (40.0, 20.0)]
    samples = Samples(
        [sample("a", n, fast) for n, (fast, _) in enumerate(speeds)]
        + [sample("b", n, slow) for n, (_, slow) in enumerate(speeds)]
    )

    assert samples.ratio("a", "b", 1) == Spread(2.0, 2.0, 2.0, 3)


def test_a_claim_is_judged_by_the_fastest_arm_or_with_each_by_the_slowest_arm() -> None:
    rows = [("slipstream plain", 10.0), ("slipstream ngram", 9.0), ("slipstream suffix", 15.0)]
    samples = Samples([sample(arm, number, speed) for number in range(3) for arm, speed in rows])

    assert (judge(claim(1.3), samples).status, judge(claim(1.6), samples).status) == ("PASS", "FAIL")
    verdict = judge(claim(0.98, each=True), samples)
    assert (verdict.status, verdict.arm) == ("FAIL", "slipstream ngram")


def test_a_claim_compares_with_the_fastest_arm_of_the_other_engine() -> None:
    rows = [("slipstream plain", 30.0), ("vllm plain", 10.0), ("vllm plain own threads", 20.0)]
    samples = Samples([sample(arm, 0, speed) for arm, speed in rows])

    plain = next(c for c in claims(["slipstream plain"], (1,)) if "plain decoding" in c.text)

    verdict = judge(plain, samples)
    assert (verdict.over, verdict.ratio) == ("vllm plain own threads", Spread(1.5, 1.5, 1.5, 1))


def test_a_claim_is_not_measured_if_one_of_the_arms_it_needs_is_missing() -> None:
    assert judge(claim(1.0), Samples([sample("slipstream ngram", 0, 1.0)])).status == "NOT MEASURED"
    without_suffix = Samples([sample("slipstream plain", 0, 1.0), sample("slipstream ngram", 0, 1.0)])
    assert judge(claim(0.98, each=True), without_suffix).status == "NOT MEASURED"


@pytest.mark.parametrize(
    ("ratios", "settled"),
    [([1.5, 1.6, 1.7], True), ([0.7, 1.05, 1.4], False), ([1.0, 1.001, 1.002], True)],
)
def test_a_claim_is_settled_if_more_rounds_would_hardly_change_its_status(ratios: list[float], settled: bool) -> None:
    samples = Samples(
        [sample("slipstream plain", n, 1.0) for n in range(len(ratios))]
        + [sample("slipstream ngram", n, ratio) for n, ratio in enumerate(ratios)]
    )

    assert judge(claim(1.0), samples).is_settled is settled


def test_every_batch_size_has_a_claim_about_adaptive_speculation() -> None:
    all_claims = claims(["slipstream plain", "slipstream plain int8", "slipstream ngram", "slipstream eagle3"], (1, 32))

    trained = next(c for c in all_claims if c.at_least == 2.0)
    assert trained.arms == ("slipstream eagle3",)
    adaptive = [c for c in all_claims if c.at_least == 0.98]
    assert [c.batch_size for c in adaptive] == [1, 32]
    assert all(c.each and c.arms == ("slipstream ngram", "slipstream eagle3") for c in adaptive)


def test_a_closed_loop_limits_the_concurrency_and_counts_passes() -> None:
    in_flight: dict[int, int] = {}  # answer -> remaining steps, at first the prompt's only token
    max_in_flight = 0

    def add(number: int, prompt: list[int]) -> None:
        in_flight[number] = prompt[0]

    def step() -> Iterator[Advance]:
        nonlocal max_in_flight
        max_in_flight = max(max_in_flight, len(in_flight))
        for number in list(in_flight):
            in_flight[number] -= 1
            ended = in_flight[number] == 0
            if ended:
                del in_flight[number]
            yield number, [7, 7], ended

    answers = closed_loop(Job([[3], [1], [2]], 8, 2), add, step)

    assert max_in_flight == 2
    assert answers.outputs == [[7] * 6, [7] * 2, [7] * 4]
    # The answers take 3 + 1 + 2 = 6 steps of 2 tokens. One step and one token of each answer belong to prefill.
    assert answers.acceptance_length == pytest.approx((12 - 3) / (6 - 3))
    assert len(answers.ttft_seconds) == 3


def fake_arm(**settings: object) -> Arm:
    return Arm(engine="slipstream", runner="fake_runner", settings=dict(settings))


@pytest.fixture
def fake_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_RUNNERS", "tests.benchmarks")


@pytest.mark.usefixtures("fake_runners")
def test_a_runner_continues_after_a_failed_job(tmp_path: Path) -> None:
    process = Process(fake_arm(), {}, tmp_path / "log")
    try:
        assert process.about == {"engine": "fake", "version": "1"}
        with pytest.raises(PeerMissing, match="nothing to do"):
            process.answer(Job([[1]], 0, 1))
        assert process.answer(Job([[1, 2], [3]], 4, 1)).outputs == [[2, 1], [3]]
    finally:
        process.close()


@pytest.mark.usefixtures("fake_runners")
def test_the_error_for_a_runner_that_cannot_start_contains_the_last_output_of_the_runner(tmp_path: Path) -> None:
    with pytest.raises(PeerMissing, match="no such model"):
        Process(fake_arm(broken=True), {}, tmp_path / "log")


class Pip:
    """Records the installation commands of an environment instead of running them. Commands with `refused` fail."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.commands = refused, list[str]()

    def __call__(self, *command: str) -> str:
        self.commands.append(" ".join(command))
        Path(os.environ["XDG_CACHE_HOME"], "slipstream", "peers", "peer").mkdir(parents=True, exist_ok=True)
        if self.refused and self.refused in command:
            raise PeerMissing(f"no {self.refused}")
        return json.dumps(["torch==9", "numba>=0.65; python_version > '3'", "pandas; extra == 'bench'"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


PEER = Environment(name="peer", requirements=(("engine==1",),), dependencies_of="engine", left_out=frozenset({"torch"}))


@pytest.mark.usefixtures("cache")
def test_an_environment_is_installed_once_and_without_the_excluded_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip = Pip()
    monkeypatch.setattr(install, "_run", pip)

    PEER.ensure()
    PEER.ensure()

    assert [command.endswith((" engine==1", " numba>=0.65")) for command in pip.commands].count(True) == 2
    # The commands create the environment, install the engine, list its dependencies, and install these without torch.
    assert len(pip.commands) == 4


@pytest.mark.usefixtures("cache")
def test_a_failed_installation_of_an_environment_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_run", Pip(refused="engine==1"))
    with pytest.raises(PeerMissing, match="no engine==1"):
        PEER.ensure()

    monkeypatch.setattr(install, "_run", pip := Pip())
    PEER.ensure()

    assert len(pip.commands) == 4


def answers_of(speed: float) -> Answers:
    return Answers(outputs=[[1]], seconds=1 / speed, ttft_seconds=[0.1], acceptance_length=None)


class FixedSpeedProcess:
    """A fake process that answers at a fixed speed, or fails if the speed is 0. Each call adds its name to `turns`."""

    def __init__(self, speed: float, turns: list[str], name: str) -> None:
        self._speed, self._turns, self._name = speed, turns, name

    def answer(self, job: Job) -> Answers:
        self._turns.append(self._name)
        if not self._speed:
            raise PeerMissing("died")
        return answers_of(self._speed)


def test_the_order_of_the_arms_is_reversed_in_the_second_round_and_a_failed_arm_is_reported() -> None:
    turns: list[str] = []
    named = [(Arm(engine="slipstream", runner=""), 5.0), (Arm(engine="slipstream", drafter="ngram", runner=""), 6.0)]
    named.append((Arm(engine="vllm", runner=""), 0.0))
    field = cpu.RunningArms(processes={arm: FixedSpeedProcess(speed, turns, arm.name) for arm, speed in named})  # type: ignore[misc]
    plan = cpu.Plan(batch_sizes=(1,), max_tokens=1, min_rounds=2, max_rounds=2, deadline=float("inf"))

    samples = cpu.measure(plan, field, [], ([n] for n in count()))

    warm_up, first_round, second_round = turns[:3], turns[3:5], turns[5:]
    assert warm_up == ["slipstream plain", "slipstream ngram", "vllm plain"]
    assert first_round == second_round[::-1] == ["slipstream plain", "slipstream ngram"]
    assert field.missing == {"vllm plain": "died"}
    assert [(s.arm, s.round, s.equal) for s in samples.all if s.arm == "slipstream ngram"] == [
        ("slipstream ngram", 0, 1),
        ("slipstream ngram", 1, 1),
    ]


def test_the_command_without_peers_writes_table_results_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "our_arms", lambda *given: [arms.our_arms(*given)[i] for i in (0, -1)])
    model, out = make_tiny_model(tmp_path / "model"), tmp_path / "out"
    few = ["--batch-sizes", "1", "--max-tokens", "4", "--min-rounds", "1", "--max-rounds", "1"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"question": "how many?"}\n' * 4)

    code = cpu.main(["--model", str(model), "--prompts", str(prompts), "--peers", "none", "--out", str(out), *few])

    table = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert code in (0, 1)  # a tiny model on a busy machine may not reach the claimed speeds
    assert {s["arm"] for s in results["samples"]} == {
        "slipstream plain",
        "slipstream suffix",
    }
    assert all(s["equal"] == s["prompts"] for s in results["samples"])
    assert (out / "table.md").read_text().strip() == table.strip()
    assert "**NOT MEASURED** batch 1: plain decoding against vLLM's" in table
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")
