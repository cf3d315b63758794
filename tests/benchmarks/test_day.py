"""The pure parts of `make day`: its plan, its verdicts on recorded observations, its plot, and the worse speculator."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from safetensors.torch import load, save

from benchmarks.day.__main__ import main, report
from benchmarks.day.drawing import cost_over_time, draw, tokens_by_bucket
from benchmarks.day.plan import AFTERNOON, MIN_STREAMS, MORNING, Plan
from benchmarks.day.records import Answer, Day, Sample, Stream, mean_acceptance
from benchmarks.day.traffic import Traffic
from benchmarks.day.verdicts import verdicts
from benchmarks.day.worse import spoil
from slipstream import Client

START = 1_000_000.0
STEPS = ("first speculator", "rush", "morning", "idle", "wake", "shift", "round", "canary", "shadow", "evening")
OLD, NEW, WORSE = "spec_old", "spec_new", "spec_worse"
ACCEPTANCE = {"rush": 2.4, "morning": 2.5, "wake": 2.4, "shift": 1.5, "canary": 1.9, "shadow": 2.2, "evening": 2.3}


def at(step: str) -> float:
    return START + 60.0 * STEPS.index(step)


def make_stream(phase: str, number: int, **changes: Any) -> Stream:
    began = at(phase) + 1.0 + number
    made = Stream(
        request=f"{phase}-{number}",
        phase=phase,
        domain=MORNING if phase in ("rush", "morning", "wake") else AFTERNOON,
        started_at=began,
        ended_at=began + 2.0,
        first_token_seconds=0.5,
        acceptance_length=ACCEPTANCE[phase],
        answer=Answer(f"answer {number}", "stop", (number, 7)),
    )
    return replace(made, **changes)


def make_sample(seconds: float, state: str, ready: int, speculator: str) -> Sample:
    wanted = 0 if state == "sleeping" else ready
    return Sample(
        at=START + seconds, state=state, replicas=wanted, ready_replicas=ready, speculator=speculator,
        alarm="watching", reference=2.4, current=2.3,
    )  # fmt: skip


def make_day() -> Day:
    """Makes the observations of a day on which everything went as it should."""
    streams = [make_stream(phase, number) for phase in ACCEPTANCE for number in range(1 if phase == "wake" else 3)]
    day = Day(machine={}, num_streams=len(streams), started_at=START, first_speculator=OLD)
    day.steps = [(name, at(name)) for name in STEPS] + [("end", START + 700.0)]
    day.streams = streams
    day.plain = {stream.request: stream.answer for stream in streams if stream.answer is not None}
    day.samples = [
        make_sample(70, "ready", 1, OLD),
        make_sample(100, "ready", 2, OLD),
        make_sample(200, "sleeping", 0, OLD),
        make_sample(320, "ready", 1, OLD),
        make_sample(650, "ready", 1, NEW),
    ]
    day.events = [{"type": "acceptance.dropped", "object_id": "dep_1", "created_at": int(at("shift")) + 40}]
    day.ledger = [{"subject": "deployment", "ended_at": START + 60 * n, "cost": 0.25} for n in (2, 1, 3)]
    figures = {"concurrency": 1, "old": {"acceptance_length": 1.5}, "new": {"acceptance_length": 2.1}}
    promoted = {"status": "promoted", "reason": {"code": "accepted"}, "figures": figures}
    day.rounds = [{**promoted, "speculator_id": NEW, "finished_at": at("canary") + 30.0}]
    candidate = {"acceptance_length": 1.0, "num_equal": 30, "num_different": 0}
    day.worse_rollout = {
        "status": "rolled_back",
        "reason": {"code": "acceptance_dropped"},
        "speculator_id": WORSE,
        "previous_speculator_id": NEW,
        "trial": {"evidence": {"candidate": candidate, "stable": {"acceptance_length": 2.2}}},
    }
    return day


def wrong(day: Day) -> list[str]:
    return [each.name for each in verdicts(day) if not each.is_right]


def lose_a_stream(day: Day) -> None:
    day.streams[3] = replace(day.streams[3], answer=None, error="APIStreamError: upstream_terminated")


def never_send_a_request(day: Day) -> None:
    del day.streams[3]


def change_a_token(day: Day) -> None:
    day.streams[4] = replace(day.streams[4], answer=replace(day.streams[4].answer, token_ids=(4, 8)))  # type: ignore[type-var]


def change_the_text(day: Day) -> None:
    day.streams[4] = replace(day.streams[4], answer=replace(day.streams[4].answer, text="another"))  # type: ignore[type-var]


def lose_a_plain_answer(day: Day) -> None:
    del day.plain[day.streams[5].request]


def forget_all_tokens(day: Day) -> None:
    """Without token ids, answers would be compared by their text alone."""
    for number, stream in enumerate(day.streams):
        assert stream.answer is not None
        bare = replace(stream.answer, token_ids=())
        day.streams[number], day.plain[stream.request] = replace(stream, answer=bare), bare


def keep_one_replica(day: Day) -> None:
    day.samples = [replace(sample, ready_replicas=min(1, sample.ready_replicas)) for sample in day.samples]


def stay_awake(day: Day) -> None:
    day.samples = [replace(sample, state="ready") for sample in day.samples]


def sleep_too_late(day: Day) -> None:
    day.samples[2] = replace(day.samples[2], at=at("round"))


def alarm_before_the_change(day: Day) -> None:
    day.events = [*day.events, {"type": "acceptance.dropped", "object_id": "dep_1", "created_at": int(at("morning"))}]


def raise_no_alarm(day: Day) -> None:
    day.events = []


def reject_the_round(day: Day) -> None:
    day.rounds = [{**day.rounds[0], "status": "rejected", "reason": {"code": "gain_too_small"}, "finished_at": None}]


def promote_one_that_serves_no_better(day: Day) -> None:
    day.streams = [
        replace(stream, acceptance_length=1.4) if stream.phase in ("shadow", "evening") else stream
        for stream in day.streams
    ]


def serve_another_speculator(day: Day) -> None:
    day.samples[-1] = replace(day.samples[-1], speculator=WORSE)


def promote_the_worse_one(day: Day) -> None:
    assert day.worse_rollout is not None
    day.worse_rollout = {**day.worse_rollout, "status": "promoted", "reason": {"code": "accepted"}}


def roll_back_for_another_reason(day: Day) -> None:
    assert day.worse_rollout is not None
    day.worse_rollout = {**day.worse_rollout, "reason": {"code": "undecided"}}


def change_a_copy(day: Day) -> None:
    assert day.worse_rollout is not None
    day.worse_rollout["trial"]["evidence"]["candidate"]["num_different"] = 1


LOST, CHANGED = "no request is lost", "no request is changed"
PROMOTED, REFUSED = "the loop promotes a better speculator", "a worse speculator is rolled back"


def test_a_day_as_planned_has_no_wrong_verdict() -> None:
    assert wrong(make_day()) == []


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (lose_a_stream, [LOST]),
        (never_send_a_request, [LOST]),
        (change_a_token, [CHANGED]),
        (change_the_text, [CHANGED]),
        (lose_a_plain_answer, [CHANGED]),
        (forget_all_tokens, [CHANGED]),
        (keep_one_replica, ["the rush gets a second replica"]),
        (stay_awake, ["it sleeps when idle, and a request wakes it"]),
        (sleep_too_late, ["it sleeps when idle, and a request wakes it"]),
        (alarm_before_the_change, ["the drop is noticed"]),
        (raise_no_alarm, ["the drop is noticed"]),
        (reject_the_round, [PROMOTED]),
        (promote_one_that_serves_no_better, [PROMOTED]),
        (serve_another_speculator, [PROMOTED, REFUSED]),
        (promote_the_worse_one, [REFUSED]),
        (roll_back_for_another_reason, [REFUSED]),
        (change_a_copy, [REFUSED]),
    ],
)
def test_a_planted_fault_makes_its_verdict_wrong(plant: Any, expected: list[str]) -> None:
    day = make_day()
    plant(day)
    assert wrong(day) == expected


def test_a_day_that_broke_off_has_verdicts() -> None:
    day = Day(machine={}, num_streams=20, started_at=START)
    assert len(wrong(day)) == len(verdicts(day))


def test_times_change_no_verdict() -> None:
    day = make_day()
    day.streams = [replace(stream, first_token_seconds=500.0, ended_at=stream.ended_at + 900) for stream in day.streams]
    assert wrong(day) == []


def test_the_file_of_a_day_has_all_observations() -> None:
    day = make_day()
    assert Day.from_json(json.loads(json.dumps(day.as_json()))) == day


def test_the_plot_is_drawn_from_the_recorded_observations(tmp_path: Path) -> None:
    draw(Day.from_json(json.loads(json.dumps(make_day().as_json()))), tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes().startswith(b"\x89PNG")
    draw(Day(machine={}, num_streams=20, started_at=START), tmp_path / "empty.png")


def test_each_streamed_token_counts_once_and_costs_add_up() -> None:
    day = make_day()
    assert sum(tokens_by_bucket(day).values()) == 2 * len(day.streams)
    assert cost_over_time(day) == [(START + 60, 0.25), (START + 120, 0.5), (START + 180, 0.75)]


def test_the_mean_acceptance_is_that_of_all_passes() -> None:
    lengths = [make_stream("shift", number, acceptance_length=length) for number, length in enumerate((1.0, 3.0))]
    assert mean_acceptance(lengths) == pytest.approx(1.5)  # 2 answers of n tokens take n + n / 3 passes
    assert mean_acceptance([make_stream("shift", 0, acceptance_length=None)]) is None


def test_the_report_names_what_is_wrong() -> None:
    day = make_day()
    lose_a_stream(day)
    text = report(day, verdicts(day))
    assert "WRONG  no request is lost" in text
    assert "upstream_terminated" in text
    assert "0.750 USD" in text


def test_phases_share_the_streams_of_the_day_in_order() -> None:
    plan = Plan()
    limits = [plan.limit(phase) for phase in ("rush", "morning", "wake", "shift", "canary", "shadow", "evening")]
    assert limits == sorted(set(limits))
    assert limits[-1] == plan.num_streams == 200
    assert plan.limit("wake") == plan.limit("morning") + 1


@pytest.mark.parametrize("num_streams", [MIN_STREAMS, 60, 200])
def test_a_round_can_be_filled_with_the_streams_after_the_change(num_streams: int) -> None:
    plan = Plan(num_streams=num_streams)
    settings = plan.loop()
    recipe, limits = settings["recipe"], settings["limits"]
    assert 20 <= recipe["min_rows"] <= limits["max_rows"]
    if num_streams == 200:
        assert recipe["min_rows"] <= plan.limit("shift") - plan.limit("wake")


def test_requests_are_distinct_and_greedy_and_none_trains_the_first_speculator() -> None:
    plan = Plan(num_streams=30)
    made = [*plan.requests(MORNING), *plan.requests(AFTERNOON)]
    contents = [request.body["messages"][0]["content"] for request in made]
    assert len(set(contents)) == len({request.name for request in made}) == 60
    assert all(request.body["temperature"] == 0 and request.body["return_token_ids"] for request in made)
    assert not {request.body["messages"][0]["content"] for request in plan.distilled()} & set(contents)


def traffic_of(*bodies: bytes) -> tuple[Traffic, list[httpx2.Request]]:
    """Returns the traffic to a service that gives these answers, one for each request, and the requests."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, content=bodies[len(seen) - 1], headers={"Content-Type": "text/event-stream"})

    client = Client("http://day.invalid/v1", "sk_live_test", transport=httpx2.MockTransport(answer))
    plan = Plan(num_streams=MIN_STREAMS)
    return Traffic(client, plan, {MORNING: plan.requests(MORNING)}), seen


def events(*choices: dict[str, Any], is_whole: bool = True) -> bytes:
    pieces: list[dict[str, Any]] = [{"id": "chatcmpl-1", "model": "day", "choices": [choice]} for choice in choices]
    metrics = {"speculative_decoding": {"mean_acceptance_length": 1.7}}
    pieces.append({"id": "chatcmpl-1", "model": "day", "choices": [], "metrics": metrics})
    lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    return "".join([*lines, "data: [DONE]\n\n" if is_whole else ""]).encode()


FIRST = {"index": 0, "delta": {"content": "Hello"}, "token_ids": [5, 6]}
LAST = {"index": 0, "delta": {"content": "."}, "token_ids": [7], "finish_reason": "stop"}


def test_a_stream_is_collected_with_its_tokens_and_its_acceptance() -> None:
    traffic, _ = traffic_of(events(FIRST, LAST))
    traffic.send("wake", MORNING).result()
    traffic.close()
    (stream,) = traffic.ended
    assert stream.answer == Answer("Hello.", "stop", (5, 6, 7))
    assert (stream.acceptance_length, stream.error, stream.request) == (1.7, "", "problems-0000")
    assert stream.first_token_seconds is not None


@pytest.mark.parametrize("body", [events(FIRST, LAST, is_whole=False), events(FIRST), b'data: {"error": {}}\n\n'])
def test_a_stream_that_does_not_end_whole_is_lost_and_not_sent_again(body: bytes) -> None:
    traffic, seen = traffic_of(body)
    traffic.send("wake", MORNING).result()
    traffic.close()
    assert [stream.answer for stream in traffic.ended] == [None]
    assert len(seen) == 1


def test_a_phase_sends_no_more_streams_than_its_limit() -> None:
    traffic, seen = traffic_of(*[events(FIRST, LAST)] * MIN_STREAMS)
    assert not traffic.keep_open("rush", MORNING, concurrency=3)
    assert len(seen) == Plan(num_streams=MIN_STREAMS).limit("rush") == 2
    assert traffic.keep_open("evening", MORNING, concurrency=1, until=lambda: len(traffic.ended) >= 4)
    assert len(seen) < MIN_STREAMS
    traffic.close()


def test_too_few_streams_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="at least 20"):
        Plan(num_streams=MIN_STREAMS - 1)
    with pytest.raises(SystemExit):
        main(["--streams", "3"])
    assert "at least 20" in capsys.readouterr().err


def test_the_worse_speculator_has_the_same_shapes_and_noise_for_heads(tmp_path: Path) -> None:
    tensors = {"blocks.0.layers.0.weight": torch.zeros(8, 8, dtype=torch.bfloat16), "lm_head.weight": torch.eye(8)}
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.safetensors", save(tensors))
    with zipfile.ZipFile(spoil(tmp_path / "good.zip", tmp_path / "worse.zip")) as archive:
        assert archive.read("config.json") == b"{}"
        spoiled = load(archive.read("model.safetensors"))
    assert {name: (each.shape, each.dtype) for name, each in spoiled.items()} == {
        name: (each.shape, each.dtype) for name, each in tensors.items()
    }
    assert torch.equal(spoiled["lm_head.weight"], tensors["lm_head.weight"])
    assert spoiled["blocks.0.layers.0.weight"].float().std() > 0.5
