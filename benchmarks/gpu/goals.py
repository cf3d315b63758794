"""The performance targets on a GPU, and whether results files reach them.

benchmarks/gpu/steps.py defines T_plain and T_verify(n).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Mapping[str, Any]]  # by the file's name: "kernels", "decode-llama-3.1-8b", ...
_8B, _1B = "decode-llama-3.1-8b", "decode-llama-3.2-1b"
_SHORT_CONTEXT = 512
_MIDDLE_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Goal:
    text: str
    at_least: bool  # whether the value must be at least `bound`; otherwise at most
    bound: float
    value: Callable[[Results], float]  # raises KeyError or StopIteration if the value was not measured


@dataclass(frozen=True, slots=True)
class Verdict:
    goal: Goal
    value: float | None

    @property
    def status(self) -> str:
        if self.value is None:
            return "NOT MEASURED"
        goal = self.goal
        reached = self.value >= goal.bound if goal.at_least else self.value <= goal.bound
        return "PASS" if reached else "FAIL"


def _step(results: Results, name: str, context: int, nodes: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        step for step in results[name]["steps"] if (step["context"], step["nodes"]) == (context, nodes)
    )
    return found


def _row_invariance_cost(results: Results) -> float:
    """Returns the highest ratio of step times with and without row-invariant operations."""
    return max(float(row["exact_over_off"]) for row in results[_8B]["numerics"])


def _attention_share(results: Results) -> float:
    """Returns the bandwidth of attention with 16 rows at a context of 32K, relative to the bandwidth of a copy."""
    case = next(
        case for case in results["kernels"]["cases"] if case["shape"] == "llama-3.1-8b heads, 32768 keys, 16 rows"
    )
    bandwidth = case["work"]["num_bytes"] / case["seconds"]["ours"]["median"]
    return float(bandwidth / results["kernels"]["ceilings"]["copy_bytes_per_second"])


def _num_failed(results: Results) -> float:
    """Returns the number of failed kernel cases plus the number of failed checks of row invariance."""
    checked = [*results["kernels"]["cases"], *results["kernels"]["rows"]]
    return float(sum(found["passed"] is not True for found in checked))


GOALS = (
    Goal("8B shape, batch 1: share of copy bandwidth", True, 0.85, lambda r: _share(r, _8B)),
    Goal("1B shape, batch 1: share of copy bandwidth", True, 0.60, lambda r: _share(r, _1B)),
    Goal("8B, 2K: T_verify(16) / T_plain", False, 1.08, lambda r: _over_plain(r, 16)),
    Goal("8B, 2K: T_verify(128) / T_plain", False, 1.35, lambda r: _over_plain(r, 128)),
    Goal("8B, 2K: step time with row-invariant operations / without", False, 1.05, _row_invariance_cost),
    Goal("tree attention, 16 rows, 32K: share of copy bandwidth", True, 0.70, _attention_share),
    Goal("failed checks of kernels and of row invariance", False, 0.0, _num_failed),
)


def _share(results: Results, name: str) -> float:
    """Returns the share of the copy bandwidth that plain decoding reaches at a short context."""
    return float(_step(results, name, _SHORT_CONTEXT, 0)["share_of_bandwidth"])


def _over_plain(results: Results, nodes: int) -> float:
    """Returns the time of a step that verifies `nodes` draft nodes, relative to a plain step."""
    return float(_step(results, _8B, _MIDDLE_CONTEXT, nodes)["over_plain"])


def verdicts(results: Results) -> list[Verdict]:
    found = []
    for goal in GOALS:
        try:
            found.append(Verdict(goal, goal.value(results)))
        except (KeyError, StopIteration):
            found.append(Verdict(goal, None))
    return found
