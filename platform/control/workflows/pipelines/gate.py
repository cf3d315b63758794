"""Compares a speculator's evaluation report with the pipeline's gate. Pure functions."""

from collections.abc import Mapping
from typing import Any

from control.workflows.pipelines.schemas import Gate


def gate_objections(gate: Gate, report: Mapping[str, Any]) -> list[str]:
    """Returns one message for each condition that the report does not meet; none if the speculator passes."""
    objections = []
    if gate.outputs_equal and (objection := _inequality(report)):
        objections.append(objection)
    if report["speedup"] < gate.min_speedup:
        objections.append(f"speedup must be at least {gate.min_speedup:g}, got {report['speedup']:.3f}")
    minimum = gate.min_acceptance_length
    if minimum is not None and report["acceptance_length"] < minimum:
        objections.append(f"acceptance_length must be at least {minimum:g}, got {report['acceptance_length']:.3f}")
    return objections


def _inequality(report: Mapping[str, Any]) -> str | None:
    """Returns why the report does not show equal outputs; None if it does.

    Equality that was measured on held-out prompts counts even if the engine's test of row invariance did not pass.
    """
    equal, total, exact = report["outputs_equal"], report["prompts_held_out"], report.get("exact", True)
    if equal == total and (exact or total > 0):
        return None
    reason = "" if exact else f"; the machine is not exact: {report.get('exact_reason')}"
    if total == 0:
        return f"outputs_equal was not measured on any held-out prompt{reason}"
    return f"outputs_equal must be all {total} held-out prompts, got {equal}{reason}"
