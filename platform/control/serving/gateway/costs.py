"""The most that a request can cost, which it reserves under spend caps before it is sent."""

from collections.abc import Mapping
from typing import Any

from control.serving.gateway.routes import Route


def cost_bound(body: Mapping[str, Any], *, num_bytes: int, route: Route) -> int:
    """Returns an upper bound in billionths of a dollar.

    The gateway has no tokenizer. A prompt has fewer tokens than its request has bytes, and neither prompt nor answer is
    longer than the model's context. A request without `max_tokens` may use all of the context.
    """
    num_prompts = _num_prompts(body)
    wanted = _positive(body.get("max_completion_tokens")) or _positive(body.get("max_tokens"))
    answer_tokens = min(wanted or route.context_tokens, route.context_tokens)
    input_tokens = min(num_bytes, num_prompts * route.context_tokens)
    output_tokens = num_prompts * (_positive(body.get("n")) or 1) * answer_tokens
    return input_tokens * route.input_nanousd + output_tokens * route.output_nanousd


def _positive(value: object) -> int | None:
    """Returns None for any other value; the engine will refuse it, or use its default."""
    return value if isinstance(value, int) and value > 0 else None


def _num_prompts(body: Mapping[str, Any]) -> int:
    """A list of strings or of lists of token ids is several prompts; a list of token ids is one."""
    prompts = body.get("prompt")
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        return len(prompts)
    return 1
