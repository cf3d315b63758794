"""Compares a speculator's evaluation report with the pipeline's gate. Pure functions."""

from collections.abc import Mapping
from typing import Any

from control.workflows.pipelines.schemas import Gate


def gate_objections(gate: Gate, report: Mapping[str, Any]) -> list[str]:
    """Returns one message for each condition that the report does not meet; none if the speculator passes."""
    objections = []
    equal, total = report["outputs_equal"], report["prompts_held_out"]
    if gate.outputs_equal and equal != total:
        objections.append(f"outputs_equal must be all {total} held-out prompts, got {equal}")
    if report["speedup"] < gate.min_speedup:
        objections.append(f"speedup must be at least {gate.min_speedup:g}, got {report['speedup']:.3f}")
    minimum = gate.min_acceptance_length
    if minimum is not None and report["acceptance_length"] < minimum:
        objections.append(f"acceptance_length must be at least {minimum:g}, got {report['acceptance_length']:.3f}")
    return objections
