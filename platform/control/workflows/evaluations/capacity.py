"""The number of devices that a rate of requests needs, computed from the measured speeds of an evaluation.

    requests per second of a device   = tokens per second x utilisation / tokens of an answer
    devices                           = requests per second / requests per second of a device, rounded up
    cost of a month                   = devices x 730 hours x price of an hour

The speeds are those at one evaluated concurrency. Speeds at other concurrencies are not estimated. The plan is marked
as extrapolated if the answers are not about as long as the evaluated answers, or if a length of the prompts is stated,
because a report does not have the lengths of its prompts. Utilisation is the part of the measured speed that the plan
uses. Requests do not arrive evenly, so requests would have to wait for a device that is planned for its full speed.

The interval of the speed with the speculator shows the differences between the evaluated prompts. It is computed from
the interval of the ratio of the two arms if the evaluation has further arms (`compare_with`), or else from the interval
of the acceptance length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeGuard

HOURS_A_MONTH = 730
MAX_LENGTH_RATIO = 2.0  # answers up to twice as long or as short as the evaluated ones have about the measured speed
PLAIN, SPECULATIVE = "plain", "speculative"


class NotMeasuredError(Exception):
    """The evaluation has no figures for the request. `param` names the value."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests that the devices have to answer; None stands for the value of the evaluation."""

    requests_per_second: float
    output_tokens: float | None = None  # mean number of tokens of an answer
    input_tokens: float | None = None
    concurrency: int | None = None  # simultaneous requests of a device; None: the highest evaluated concurrency
    utilisation: float = 0.7
    device_kind: str | None = None
    price_per_device_hour: float | None = None  # USD; None: the price of the evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """The devices and the cost of one arm. Bounds are None if the evaluation does not show how the speed varies."""

    arm: str
    tokens_per_second: float
    requests_per_second_per_device: float
    devices: int
    devices_low: int | None
    devices_high: int | None
    cost_per_month: float | None  # USD; None: there is no price
    cost_per_month_low: float | None
    cost_per_month_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    requests_per_second: float
    output_tokens: float
    measured_output_tokens: float
    concurrency: int
    utilisation: float
    device: str
    price_per_device_hour: float | None
    hours_per_month: int
    arms: list[ArmPlan]
    interval_from: str | None  # pairs, acceptance_length; None: there is no interval
    is_extrapolated: bool
    extrapolated: list[str]  # the reasons for `is_extrapolated`


def capacity_plan(report: Mapping[str, Any], load: Load, *, speculator: str) -> CapacityPlan:
    """Plans both arms. Args: report: report of a finished evaluation. speculator: the name of the speculator's arm.

    Raises: NotMeasuredError.
    """
    _check_device(report, load.device_kind)
    point = _point(report, load.concurrency)
    measured = report["num_tokens"] / max(1, report["prompts_held_out"])
    if measured <= 0:
        raise NotMeasuredError("evaluation_id", "the evaluation has no answer tokens")
    output_tokens = measured if load.output_tokens is None else load.output_tokens
    price = report.get("price_per_gpu_hour") if load.price_per_device_hour is None else load.price_per_device_hour
    plain, speculative = point["tokens_per_second_plain"], point["tokens_per_second_speculative"]
    if min(plain, speculative) <= 0:
        message = f"the evaluation measured no tokens per second at concurrency {point['concurrency']}"
        raise NotMeasuredError("evaluation_id", message)
    interval, source = _interval(report, point, plain, speculative, speculator)
    reasons = _extrapolations(load, measured)
    needed = load.requests_per_second * output_tokens / load.utilisation  # tokens per second, of all devices

    def arm(name: str, speed: float, bounds: tuple[float, float] | None) -> ArmPlan:
        fast, slow = (None, None) if bounds is None else (bounds[1], bounds[0])
        counts = [None if each is None else ceil(needed / each) for each in (speed, fast, slow)]
        costs = [None if each is None or price is None else round(each * HOURS_A_MONTH * price, 2) for each in counts]
        return ArmPlan(
            arm=name,
            tokens_per_second=speed,
            requests_per_second_per_device=round(speed * load.utilisation / output_tokens, 6),
            devices=ceil(needed / speed),
            devices_low=counts[1],
            devices_high=counts[2],
            cost_per_month=costs[0],
            cost_per_month_low=costs[1],
            cost_per_month_high=costs[2],
        )

    return CapacityPlan(
        requests_per_second=load.requests_per_second,
        output_tokens=output_tokens,
        measured_output_tokens=round(measured, 3),
        concurrency=point["concurrency"],
        utilisation=load.utilisation,
        device=report["device"],
        price_per_device_hour=price,
        hours_per_month=HOURS_A_MONTH,
        arms=[arm(PLAIN, plain, None), arm(SPECULATIVE, speculative, interval)],
        interval_from=source,
        is_extrapolated=bool(reasons),
        extrapolated=reasons,
    )


def _check_device(report: Mapping[str, Any], kind: str | None) -> None:
    """Raises: NotMeasuredError: the evaluation ran on another kind of device."""
    measured = report["device"].partition(":")[0]
    if kind is not None and kind != measured:
        raise NotMeasuredError("device_kind", f"must be {measured}, on which the evaluation ran, got {kind[:40]!r}")


def _point(report: Mapping[str, Any], concurrency: int | None) -> Mapping[str, Any]:
    """Returns the figures at the concurrency. Raises: NotMeasuredError: it was not evaluated."""
    points = {point["concurrency"]: point for point in report.get("concurrencies") or []}
    if not points:
        raise NotMeasuredError("evaluation_id", "the report of an older version has no figures by concurrency")
    chosen = max(points) if concurrency is None else concurrency
    if chosen not in points:
        raise NotMeasuredError("concurrency", f"must be one of the evaluated {sorted(points)}, got {chosen}")
    point: Mapping[str, Any] = points[chosen]
    return point


def _interval(
    report: Mapping[str, Any], point: Mapping[str, Any], plain: float, speculative: float, speculator: str
) -> tuple[tuple[float, float] | None, str | None]:
    """Returns the bounds of the tokens per second with the speculator, and the figure from which they come."""
    for pair in report.get("pairs") or []:
        of_pair = (pair["concurrency"], pair["arm"], pair["baseline"])
        if of_pair == (point["concurrency"], speculator, "none") and _is_above_zero(pair["interval"]):
            return (plain * pair["interval"][0], plain * pair["interval"][1]), "pairs"
    accepted, mean = point.get("acceptance_length_interval"), point["acceptance_length"]
    if not _is_above_zero(accepted) or mean <= 0:
        return None, None
    # A verify pass takes about the same time however many of its tokens are accepted.
    return (speculative * accepted[0] / mean, speculative * accepted[1] / mean), "acceptance_length"


def _is_above_zero(interval: Sequence[float] | None) -> TypeGuard[Sequence[float]]:
    """An interval that begins at zero says nothing about the number of devices."""
    return interval is not None and interval[0] > 0


def _extrapolations(load: Load, measured: float) -> list[str]:
    reasons = []
    length = load.output_tokens
    if length is not None and not measured / MAX_LENGTH_RATIO <= length <= measured * MAX_LENGTH_RATIO:
        reasons.append(f"output_tokens is {length:g}; the evaluated answers have {measured:.1f} tokens on average")
    if load.input_tokens is not None:
        reasons.append("input_tokens: the speed is that with the prompts of the evaluation, whatever their length")
    return reasons
