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
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    is_given = isinstance(wanted, int) and wanted > 0
    answer_tokens = min(wanted, route.context_tokens) if is_given else route.context_tokens  # type: ignore[type-var]
    choices = body.get("n")
    num_choices = choices if isinstance(choices, int) and choices > 1 else 1
    input_tokens = min(num_bytes, num_prompts * route.context_tokens)
    output_tokens = num_prompts * num_choices * answer_tokens
    return input_tokens * route.input_nanousd + output_tokens * route.output_nanousd


def _num_prompts(body: Mapping[str, Any]) -> int:
    """A list of strings or of lists of token ids is several prompts; a list of token ids is one."""
    prompts = body.get("prompt")
    is_several = isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], str | list)
    return len(prompts) if is_several and isinstance(prompts, list) else 1
