"""Judges the day from what was recorded. Verdicts rest on answers and acceptance, and never on times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.day.records import Day, Stream, mean_acceptance


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    is_right: bool
    finding: str


def verdicts(day: Day) -> list[Verdict]:
    return [_lost(day), _changed(day), _scaled_up(day), _slept(day), _noticed(day), _promoted(day), _refused(day)]


def _lost(day: Day) -> Verdict:
    complete = {stream.request for stream in day.streams if stream.answer is not None}
    failures = [stream for stream in day.streams if stream.answer is None]
    finding = f"{len(complete)} of {day.num_streams} planned requests were answered whole"
    if failures:
        first = failures[0]
        finding += f"; {first.request} ({first.phase}): {first.error or 'it ended without a reason'}"
    is_right = len(complete) == day.num_streams == len(day.streams)
    return Verdict("no request is lost", is_right, finding)


def _changed(day: Day) -> Verdict:
    answered = [stream for stream in day.streams if stream.answer is not None]
    equal = [stream for stream in answered if stream.answer == day.plain.get(stream.request)]
    finding = f"{len(equal)} of {len(answered)} answers equal the plain ones, token for token"
    wrong = [stream for stream in answered if stream.answer != day.plain.get(stream.request)]
    if wrong:
        what = "differs" if wrong[0].request in day.plain else "has no plain answer"
        finding += f"; {wrong[0].request} ({wrong[0].phase}) {what}"
    has_tokens = all(stream.answer is not None and stream.answer.token_ids for stream in answered)
    return Verdict("no request is changed", bool(answered) and not wrong and has_tokens, finding)


def _scaled_up(day: Day) -> Verdict:
    most = max((sample.ready_replicas for sample in day.samples), default=0)
    return Verdict("the rush gets a second replica", most == 2, f"at most {most} replicas were ready")


def _slept(day: Day) -> Verdict:
    idle, shift = day.step_at("idle"), day.step_at("shift")
    in_time = [sample for sample in day.samples if idle is not None and idle <= sample.at <= (shift or sample.at)]
    has_slept = any(sample.state == "sleeping" for sample in in_time)
    woken = [stream for stream in day.of("wake") if stream.answer is not None]
    finding = f"sleeping: {has_slept}"
    if woken and woken[0].first_token_seconds is not None:
        finding += f"; the first token after waking came in {woken[0].first_token_seconds:.2f} s"
    return Verdict("it sleeps when idle, and a request wakes it", has_slept and bool(woken), finding)


def _noticed(day: Day) -> Verdict:
    """The alarm has to come after the change of the domain, once, and the acceptance must have fallen."""
    shift = day.step_at("shift")
    usual, after = mean_acceptance(day.of("rush", "morning")), mean_acceptance(day.of("shift"))
    alarms = [event["created_at"] for event in day.events if event["type"] == "acceptance.dropped"]
    finding = f"acceptance length {_length(usual)}, after the change {_length(after)}; {len(alarms)} alarms"
    if shift is None or not alarms or usual is None or after is None:
        return Verdict("the drop is noticed", False, finding)
    finding += f", the first {alarms[-1] - shift:.0f} s after the change"
    is_first_late = min(alarms) >= int(shift)
    return Verdict("the drop is noticed", is_first_late and after < usual, finding)


def _promoted(day: Day) -> Verdict:
    name = "the loop promotes a better speculator"
    if not day.rounds:
        return Verdict(name, False, "no round began")
    made = day.rounds[-1]  # the first one
    figures = made["figures"] or {}
    old, new = (((figures.get(side) or {}).get("acceptance_length")) for side in ("old", "new"))
    before = mean_acceptance(day.of("shift"))
    after = mean_acceptance([stream for stream in day.streams if _is_after(stream, made)])
    finding = f"{made['status']}{_reason(made)}; held out: {_length(old)} to {_length(new)}"
    finding += f"; served: {_length(before)} to {_length(after)}"
    is_served = bool(day.samples) and day.samples[-1].speculator == made["speculator_id"]
    is_better = _is_longer(new, than=old) and _is_longer(after, than=before)
    return Verdict(name, made["status"] == "promoted" and is_served and is_better, finding)


def _is_longer(length: float | None, *, than: float | None) -> bool:
    return length is not None and than is not None and length > than


def _is_after(stream: Stream, made: Mapping[str, Any]) -> bool:
    return bool(made["finished_at"]) and stream.started_at >= made["finished_at"]


def _refused(day: Day) -> Verdict:
    name = "a worse speculator is rolled back"
    rollout = day.worse_rollout
    if rollout is None:
        return Verdict(name, False, "there was no such rollout")
    evidence = (rollout["trial"] or {}).get("evidence") or {}
    worse, serving = evidence.get("candidate") or {}, evidence.get("stable") or {}
    num_equal, num_different = worse.get("num_equal", 0), worse.get("num_different", 0)
    lengths = f"{_length(worse.get('acceptance_length'))} against {_length(serving.get('acceptance_length'))}"
    finding = f"{rollout['status']}{_reason(rollout)}; acceptance length {lengths}"
    finding += f"; {num_equal} of {num_equal + num_different} copies equal"
    has_dropped = rollout["status"] == "rolled_back" and (rollout["reason"] or {}).get("code") == "acceptance_dropped"
    is_served = bool(day.samples) and day.samples[-1].speculator == rollout["previous_speculator_id"]
    return Verdict(name, has_dropped and is_served and num_equal > 0 and not num_different, finding)


def _reason(of: Mapping[str, Any]) -> str:
    code = (of["reason"] or {}).get("code")
    return f" ({code})" if code else ""


def _length(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
