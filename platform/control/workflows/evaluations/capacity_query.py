"""Parses the query parameters of a capacity plan."""

from collections.abc import Mapping

from control.core.api.errors import ApiError
from control.workflows.evaluations.capacity import Load

CAPACITY_QUERY = {
    "requests_per_second": "Required. The rate of requests that the devices have to answer.",
    "output_tokens": "The mean number of tokens of an answer. The default is the mean of the evaluation.",
    "input_tokens": "The mean number of tokens of a prompt. If it is given, the plan is marked as extrapolated, "
    "because the speed was measured with the prompts of the evaluation.",
    "concurrency": "One of the evaluated concurrencies. The default is the highest.",
    "utilisation": "The share of the measured speed that the plan expects of a device. The default is 0.7.",
    "device_kind": "The kind of device, `cuda` or `cpu`. The request is refused if the evaluation ran on another kind.",
    "price_per_device_hour": "The price of one hour of a device in US dollars. The default is the price of the "
    "evaluation.",
}
_RANGES = {  # by parameter: the lowest and the highest value
    "requests_per_second": (1e-6, 1e9),
    "output_tokens": (1, 1e7),
    "input_tokens": (0, 1e7),
    "utilisation": (0.01, 1.0),
    "price_per_device_hour": (0, 100_000),
}
_MAX_CONCURRENCY = 256


def parse_load(params: Mapping[str, str]) -> Load:
    """Raises: ApiError: 400."""
    values = {name: _number(name, params[name], *limits) for name, limits in _RANGES.items() if name in params}
    if "requests_per_second" not in values:
        param = "requests_per_second"
        raise ApiError(400, f"{param}: this parameter is required.", "missing_required_parameter", param)
    concurrency = params.get("concurrency")
    return Load(
        **values,
        concurrency=None if concurrency is None else int(_number("concurrency", concurrency, 1, _MAX_CONCURRENCY)),
        device_kind=params.get("device_kind"),
    )


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    is_whole = number == int(number) if low <= number <= high else True
    if not low <= number <= high or (name == "concurrency" and not is_whole):
        raise ApiError(400, f"{name} must be in {low:g}..{high:g}, got {text[:40]!r}", "invalid_value", name)
    return number
