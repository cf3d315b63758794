"""Measures each drafter with a real model: acceptance, speedup, and whether its answers equal plain decoding's.

The measured speedup can be compared with a predicted one:

    predicted speedup = acceptance length * T_plain / (T_verify(nodes) + T_draft)

benchmarks/gpu/steps.py defines these times.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.decode import acceptance
from benchmarks.samples import Spread
from benchmarks.workload import WITHOUT_WEIGHTS, Prompt, speculator_kind
from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_drafter
from engine.loop import Engine
from engine.models.dense import Decoder
from engine.request import Completion, Request, SamplingParams

_ROUNDS = 3
_BUDGET = 16
_CONTEXT = 256  # context at which a graph step is timed, about the length of prompts and answers


def drafters_of(speculators: Sequence[Path]) -> list[tuple[str, Path | None]]:
    """Returns the names of the drafters with the folders of their speculators. The first, "none", is plain decoding.

    Raises: WorkloadError: a folder does not contain a speculator.
    """
    trained = [(speculator_kind(folder), folder) for folder in speculators]
    return [("none", None), *((name, None) for name in WITHOUT_WEIGHTS), *trained]


def measure_drafters(
    model: Decoder,
    model_dir: Path,
    prompts: Sequence[Prompt],
    speculators: Sequence[Path],
    *,
    batch: int,
    max_tokens: int,
    graph_decoding: str = "auto",
) -> list[dict[str, Any]]:
    """Runs the drafters in turns and returns a table row for each. Raises: WorkloadError, SpeculatorNotLoadable."""
    longest = max(len(prompt.token_ids) for prompt in prompts) + max_tokens
    longest = max(longest, 2 * _CONTEXT)
    config = EngineConfig(
        max_batch_size=batch, max_seq_len=longest, draft_budget=_BUDGET, graph_decoding=graph_decoding
    )
    engines = {
        name: Engine(model, load_drafter(name, model, folder, model_dir=model_dir), config)
        for name, folder in drafters_of(speculators)
    }
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    requests = [Request(prompt.custom_id, prompt.token_ids, sampling, memory="benchmark") for prompt in prompts]
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, list[Completion]] = {}
    draft_seconds: dict[str, float] = {}
    for turn in range(1 + _ROUNDS):
        for name in list(engines)[:: 1 if turn % 2 == 0 else -1]:
            before = engines[name].phase_seconds["draft"]
            started = time.perf_counter()
            answers[name] = generate(engines[name], requests)
            seconds = time.perf_counter() - started
            draft_seconds[name] = engines[name].phase_seconds["draft"] - before
            if turn:  # the first turn compiles and captures
                speeds[name].append(sum(len(answer.token_ids) for answer in answers[name]) / seconds)
    return [
        _row(name, engine, answers[name], answers["none"], Spread.of(speeds[name]), speeds["none"], draft_seconds[name])
        for name, engine in engines.items()
    ]


def _row(
    name: str,
    engine: Engine,
    answers: Sequence[Completion],
    plain: Sequence[Completion],
    speed: Spread | None,
    plain_speeds: Sequence[float],
    draft_seconds: float,
) -> dict[str, Any]:
    length, rates = acceptance(answers)
    plain_speed = Spread.of(plain_speeds)
    assert speed is not None  # there is at least one round
    assert plain_speed is not None
    row = {
        "drafter": name,
        "tokens_per_second": asdict(speed),
        "speedup": speed.median / plain_speed.median,
        "acceptance_length": length,
        "acceptance_rate_per_position": rates,
        "equal": sum(ours.token_ids == theirs.token_ids for ours, theirs in zip(answers, plain, strict=True)),
        "answers": len(answers),
    }
    if name != "none" and engine.uses_graph_decoding and engine.config.max_batch_size == 1:
        num_passes = sum(answer.speculation.num_spec_steps for answer in answers)
        row["speedup_foreseen"] = predicted_speedup(
            length,
            plain=engine.time_graph_step(1, 0, context=_CONTEXT).verify_seconds,
            verify=engine.time_graph_step(1, _BUDGET, context=_CONTEXT).verify_seconds,
            draft=draft_seconds / max(1, num_passes),
        )
    return row


def predicted_speedup(acceptance_length: float, *, plain: float, verify: float, draft: float) -> float:
    """Computes the formula of the module docstring, with plain = T_plain, verify = T_verify(nodes), draft = T_draft."""
    return acceptance_length * plain / (verify + draft)
