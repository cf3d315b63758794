"""Compares a speculator's evaluation report with the pipeline's gate. The functions read and write no database."""

from collections.abc import Mapping
from typing import Any

from control.workflows.pipelines.schemas import Gate
from workers.kinds import MODEL_AND_ADAPTER

_SPEEDUPS = {"plain": "speedup", "suffix": "speedup_over_suffix"}  # maps the gate's baseline to the report's figure


def gate_objections(gate: Gate, report: Mapping[str, Any]) -> list[str]:
    """Returns one message for each condition that the report does not meet; none if the speculator passes."""
    objections = []
    if gate.outputs_equal is not False and (objection := _inequality(gate, report)):
        objections.append(objection)
    judged = _judged(gate, report)
    if not judged:
        objections.append(f"the report must have figures at concurrency {gate.concurrency}")
    for point in judged:
        objections += _too_slow(gate, point)
        if gate.max_break_even_tokens is not None and (objection := _not_paid_off(gate, point, report)):
            objections.append(objection)
    return objections


def _too_slow(gate: Gate, point: Mapping[str, Any]) -> list[str]:
    objections, at, name = [], _at(point), _SPEEDUPS[gate.baseline]
    if name not in point:
        objections.append(f"the report of an older version has no {name}{at}")
    elif point[name] < gate.min_speedup:
        objections.append(f"{name} must be at least {gate.min_speedup:g}{at}, got {point[name]:.3f}")
    minimum = gate.min_acceptance_length
    if minimum is not None and point["acceptance_length"] < minimum:
        got = f"{point['acceptance_length']:.3f}"
        objections.append(f"acceptance_length must be at least {minimum:g}{at}, got {got}")
    return objections


def _not_paid_off(gate: Gate, point: Mapping[str, Any], report: Mapping[str, Any]) -> str | None:
    """Returns an objection if the speculator pays for itself too late, never, or after an unknown number of tokens."""
    tokens, limit = point.get("break_even_tokens"), gate.max_break_even_tokens
    if tokens is not None and limit is not None and tokens <= limit:
        return None
    required = f"break_even_tokens must be at most {limit:,}{_at(point)}, got "
    if tokens is not None:
        return f"{required}{tokens:,}"
    if report.get("training_seconds") is None:
        return f"{required}none: the time of the training is not known"
    speeds = [f"{point[f'tokens_per_second_{arm}']:g}" for arm in ("speculative", "plain")]
    return f"{required}none: {speeds[0]} tokens per second with the speculator, {speeds[1]} without it"


def _at(point: Mapping[str, Any]) -> str:
    return f" at concurrency {point['concurrency']}" if "concurrency" in point else ""


def _inequality(gate: Gate, report: Mapping[str, Any]) -> str | None:
    """Returns why the report does not show equal outputs; None if it does.

    Equal outputs for every held-out prompt suffice, even if the engine's test of row invariance did not pass. Without
    held-out prompts, that test must have passed.
    """
    total, exact = report["prompts_held_out"], report.get("exact", True)
    if gate.outputs_equal == MODEL_AND_ADAPTER:
        equal, reference = report["outputs_equal"], "the model and the adapter"
    else:  # older reports lack `outputs_equal_to_model`; their `outputs_equal` compares with model and adapter
        equal, reference = report.get("outputs_equal_to_model", report["outputs_equal"]), "the model"
    if equal == total and (exact or total > 0):
        return None
    reason = "" if exact else f"; the machine is not exact: {report.get('exact_reason')}"
    if total == 0:
        return f"outputs_equal was not measured on any held-out prompt{reason}"
    return f"outputs_equal must be all {total} held-out prompts, got {equal} (compared with {reference}){reason}"


def _judged(gate: Gate, report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the figures at the gate's concurrency, or, if it names none, at each evaluated concurrency."""
    points = report.get("concurrencies") or [report]
    return [point for point in points if gate.concurrency in (None, point.get("concurrency"))]
