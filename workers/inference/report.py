"""The report of an evaluation: its measurements as JSON, with the definition of every figure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from engine.openai.responses import merged_stats
from engine.request import SpeculationStats
from engine.row_invariance import RowInvariance
from workers.inference.comparison import SUFFIX, Measurement
from workers.inference.distribution import DistributionTest
from workers.inference.economy import Economics
from workers.inference.intervals import ratio_interval
from workers.inference.loops import is_looping
from workers.inference.rows import RowAnswer
from workers.inference.segments import figures_by_context, figures_by_phase
from workers.kinds import MODEL, MODEL_AND_ADAPTER

MAX_DIVERGENCES = 100

DEFINITIONS = {
    "exact": "Whether the engine's test of row invariance passed for this model on this machine; if not, exact_reason.",
    "system_fingerprint": "What determines the answers besides the request, as in responses; see docs/audit.md.",
    "outputs_equal": "Prompts for which all runs, of all arms at all concurrencies, gave the same token ids.",
    "equal_to": "What outputs_equal compares with: model, or model_and_adapter if the speculator has its own adapter.",
    "outputs_equal_to_model": "Prompts for which all runs gave the token ids of the named model, without any adapter.",
    "tokens_equal_to_model": "Share of the named model's tokens that come before the first difference of their answer.",
    "first_divergences": "For each prompt not in outputs_equal: position of the first different token, from 0.",
    "distribution_test": "Tokens of `samples` seeds each, plain against speculative: p-value of a chi-square test.",
    "engine": "The options of all arms. kv_tokens: positions in the KV cache; draft_budget: null if it is measured.",
    "acceptance_length": "Tokens per verify pass, including the target's own: 1 + accepted draft tokens / passes.",
    "acceptance_rate_per_position": "Position i, from 1: share of verify passes that accepted i or more draft tokens.",
    "tokens_per_second_plain": "Answer tokens / wall-clock seconds, including the prefill, with no drafter.",
    "tokens_per_second_suffix": "The same with suffix decoding alone, without training; runs of the arms alternate.",
    "tokens_per_second_speculative": "The same with the drafter; engine, weights and concurrency are the same.",
    "speedup": "tokens_per_second_speculative / tokens_per_second_plain, at the lowest concurrency measured.",
    "speedup_suffix": "tokens_per_second_suffix / tokens_per_second_plain: what is gained without any training.",
    "speedup_over_suffix": "tokens_per_second_speculative / tokens_per_second_suffix: what training adds.",
    "acceptance_length_suffix": "acceptance_length of suffix decoding alone.",
    "acceptance_length_interval": "95 % interval, bootstrap over prompts (1,000 resamples, percentiles); null below 2.",
    "acceptance_length_suffix_interval": "The same for acceptance_length_suffix.",
    "num_tokens": "Tokens of all plain answers of one run.",
    "looping_answers": "Answers that repeat the same 1 to 32 tokens at least 4 times over 24 tokens or more.",
    "acceptance_length_without_loops": "acceptance_length over the answers that do not loop; null if all do.",
    "acceptance_rate_per_position_without_loops": "acceptance_rate_per_position over the same answers.",
    "by_phase": "Passes that begin within a reasoning trace (thinking), and all other passes (answering).",
    "by_context": "Passes by the number of tokens before them: context_from or more, fewer than context_to.",
    "decode_tokens_per_second_plain": "Tokens / seconds of steps, without prefills; null unless concurrency 1 was run.",
    "decode_tokens_per_second_speculative": "The same with the drafter, at concurrency 1.",
    "training_seconds": "Worker time for answering the training prompts and for training; null if not known.",
    "cost_per_million_tokens_plain": "price_per_gpu_hour / 3600 / tokens_per_second_plain x 1,000,000, in USD.",
    "cost_per_million_tokens_speculative": "The same with tokens_per_second_speculative.",
    "break_even_tokens": "Answer tokens after which the time saved is training_seconds; null if never or not known.",
    "break_even_requests": "break_even_tokens / mean tokens of a plain answer.",
}


def evaluation_report(
    measurements: Sequence[Measurement],
    *,
    drafter: str,
    model: str,
    dtype: str,
    weights: str,
    engine: Mapping[str, str | int | None],
    device: str,
    max_tokens: int | None,
    repeats: int,
    rows_refused: int,
    row_invariance: RowInvariance,
    system_fingerprint: str,
    economics: Economics,
    distribution: DistributionTest,
    model_answers: Mapping[int, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Builds the report.

    Args:
        measurements: at least one; all of the same prompts.
        engine: the options with which all arms ran.
        model_answers: the named model's answers without an adapter, by row, if all arms use an adapter. None: no arm
            uses an adapter, so the plain arm's answers are the model's.
    """
    lowest = min(measurements, key=lambda m: m.concurrency)
    reference = tokens_by_row(lowest.plain.answers)
    answers = list(chain.from_iterable(arm.answers for m in measurements for arm in m.arms.values()))
    divergences = first_divergences(answers, reference)
    from_model = divergences if model_answers is None else first_divergences(answers, model_answers)
    looping = {number for number, tokens in reference.items() if is_looping(tokens)}
    stats = lowest.speculative.speculation
    num_tokens = sum(map(len, reference.values()))
    return {
        "model": model,
        "drafter": drafter,
        "dtype": dtype,
        "weights": weights,
        "engine": dict(engine),
        "device": device,
        "max_tokens": max_tokens,
        "repeats": repeats,
        "prompts_held_out": len(reference),
        "rows_refused": rows_refused,
        "exact": row_invariance.exact,
        "exact_reason": row_invariance.reason,
        "system_fingerprint": system_fingerprint,
        "equal_to": MODEL if model_answers is None else MODEL_AND_ADAPTER,
        "outputs_equal": len(reference) - len(divergences),
        "outputs_equal_to_model": len(reference) - len(from_model),
        "tokens_equal_to_model": _share_before(from_model, model_answers or reference),
        "first_divergences": [
            {"custom_id": custom_id, "position": position}
            for _, (custom_id, position) in sorted(divergences.items())[:MAX_DIVERGENCES]
        ],
        "distribution_test": distribution.as_json(),
        "num_tokens": num_tokens,
        **_compared(lowest),
        "acceptance_rate_per_position": acceptance_rates(stats),
        "looping_answers": len(looping),
        **_figures_without(looping, lowest.speculative.answers),
        "by_phase": figures_by_phase(lowest.plain.segments, lowest.speculative.segments),
        "by_context": figures_by_context(lowest.plain.segments, lowest.speculative.segments),
        "price_per_gpu_hour": economics.price_per_gpu_hour,
        "training_seconds": economics.training_seconds,
        "training_cost": economics.training_cost,
        "concurrencies": [_at_concurrency(m, economics, num_tokens / len(reference)) for m in measurements],
        "definitions": DEFINITIONS,
    }


def acceptance_rates(stats: SpeculationStats) -> list[float]:
    """Returns a list whose item i is the share of verify passes that accepted i + 1 or more draft tokens."""
    passes = max(1, stats.num_spec_steps)
    histogram = stats.acceptance_histogram
    return [round(sum(histogram[i + 1 :]) / passes, 4) for i in range(len(histogram) - 1)]


def _at_concurrency(measurement: Measurement, economics: Economics, tokens_per_answer: float) -> dict[str, Any]:
    plain, speculative = measurement.plain.tokens_per_second, measurement.speculative.tokens_per_second
    return {
        "concurrency": measurement.concurrency,
        **_compared(measurement),
        **economics.figures(plain=plain, speculative=speculative, tokens_per_answer=tokens_per_answer),
        "phase_seconds": {
            name: {phase: round(seconds, 3) for phase, seconds in arm.phase_seconds.items()}
            for name, arm in measurement.arms.items()
        },
    }


def _compared(measurement: Measurement) -> dict[str, Any]:
    """Returns the speed and acceptance of all arms, and the speedup of each pair."""
    return {
        **{f"tokens_per_second_{name}": round(arm.tokens_per_second, 3) for name, arm in measurement.arms.items()},
        "speedup": round(measurement.speedup(), 4),
        "speedup_suffix": round(measurement.speedup(SUFFIX), 4),
        "speedup_over_suffix": round(measurement.speedup(over=SUFFIX), 4),
        "acceptance_length": round(measurement.speculative.speculation.mean_acceptance_length, 4),
        "acceptance_length_suffix": round(measurement.suffix.speculation.mean_acceptance_length, 4),
        "acceptance_length_interval": acceptance_interval(measurement.speculative.answers),
        "acceptance_length_suffix_interval": acceptance_interval(measurement.suffix.answers),
    }


def acceptance_interval(answers: Iterable[RowAnswer]) -> list[float] | None:
    """Returns the confidence interval of the acceptance length; all answers to a prompt form one sample."""
    sums: dict[int, tuple[int, int]] = {}
    for answer in answers:
        stats, (accepted, passes) = answer.speculation, sums.get(answer.request.row.number, (0, 0))
        sums[answer.request.row.number] = accepted + stats.num_accepted_draft_tokens, passes + stats.num_spec_steps
    drafted = [(accepted, passes) for accepted, passes in sums.values() if passes > 0]
    found = ratio_interval([accepted for accepted, _ in drafted], [passes for _, passes in drafted])
    return None if found is None else [round(1.0 + bound, 4) for bound in found]


def tokens_by_row(answers: Iterable[RowAnswer]) -> dict[int, tuple[int, ...]]:
    """Returns the token ids of the first answer to each row."""
    tokens: dict[int, tuple[int, ...]] = {}
    for answer in answers:
        tokens.setdefault(answer.request.row.number, tuple(answer.token_ids))
    return tokens


def first_divergences(
    answers: Iterable[RowAnswer], reference: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[str, int]]:
    """Returns, by row number, the custom_id and the position of the first different token. Rows without one are left
    out.

    Args: reference: the expected token ids, by row number.
    """
    earliest: dict[int, tuple[str, int]] = {}
    for answer in answers:
        row = answer.request.row
        expected, got = reference[row.number], tuple(answer.token_ids)
        if got == expected:
            continue
        different = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        position = min(len(expected), len(got)) if different is None else different
        earliest[row.number] = (row.custom_id, min(position, earliest.get(row.number, ("", position))[1]))
    return earliest


def _share_before(divergences: Mapping[int, tuple[str, int]], reference: Mapping[int, tuple[int, ...]]) -> float:
    total = sum(map(len, reference.values()))
    lost = sum(len(reference[number]) - position for number, (_, position) in divergences.items())
    return round(1.0 - lost / max(1, total), 4)


def _figures_without(looping: set[int], answers: Iterable[RowAnswer]) -> dict[str, Any]:
    """Returns the acceptance figures over the answers that do not loop. The figures are None if all answers loop."""
    kept = [answer.speculation for answer in answers if answer.request.row.number not in looping]
    stats = merged_stats(kept) if kept else None
    return {
        "acceptance_length_without_loops": None if stats is None else round(stats.mean_acceptance_length, 4),
        "acceptance_rate_per_position_without_loops": None if stats is None else acceptance_rates(stats),
    }
