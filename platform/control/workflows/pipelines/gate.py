"""Compares a speculator's evaluation report with the pipeline's gate. Pure functions."""

from collections.abc import Mapping
from typing import Any

from control.workflows.pipelines.schemas import Gate
from workers.kinds import MODEL_AND_ADAPTER


def gate_objections(gate: Gate, report: Mapping[str, Any]) -> list[str]:
    """Returns one message for each condition that the report does not meet; none if the speculator passes."""
    objections = []
    equal, total, reference = _equal_outputs(gate, report)
    if gate.outputs_equal is not False and equal != total:
        objections.append(f"outputs_equal must be all {total} held-out prompts, got {equal} ({reference})")
    judged = _judged(gate, report)
    if not judged:
        objections.append(f"the report must have figures at concurrency {gate.concurrency}")
    for point in judged:
        at = f" at concurrency {point['concurrency']}" if "concurrency" in point else ""
        if point["speedup"] < gate.min_speedup:
            objections.append(f"speedup must be at least {gate.min_speedup:g}{at}, got {point['speedup']:.3f}")
        minimum = gate.min_acceptance_length
        if minimum is not None and point["acceptance_length"] < minimum:
            got = f"{point['acceptance_length']:.3f}"
            objections.append(f"acceptance_length must be at least {minimum:g}{at}, got {got}")
    return objections


def _equal_outputs(gate: Gate, report: Mapping[str, Any]) -> tuple[int, int, str]:
    """Returns the number of equal outputs, the number of outputs, and what they are compared with."""
    total = report["prompts_held_out"]
    if gate.outputs_equal == MODEL_AND_ADAPTER:
        return report["outputs_equal"], total, "compared with the model and the adapter"
    # Reports of older versions compare only with the plain arm, which is the named model unless there is an adapter.
    return report.get("outputs_equal_to_model", report["outputs_equal"]), total, "compared with the model"


def _judged(gate: Gate, report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the figures at the gate's concurrency, or, if it names none, at each evaluated concurrency."""
    points = report.get("concurrencies") or [report]
    return [point for point in points if gate.concurrency in (None, point.get("concurrency"))]
