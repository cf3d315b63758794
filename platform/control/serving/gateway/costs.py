"""Computes the most that a request can cost. The gateway reserves this amount if a spend cap applies to the request."""

from control.serving.gateway.completion_request import CompletionRequest
from control.serving.gateway.routes import Route

SPECIAL_TOKENS = 16  # tokens and dates that a template or a tokenizer inserts into a prompt or a part of a chat


def cost_bound(request: CompletionRequest, route: Route) -> int:
    """Returns an upper bound in billionths of a dollar.

    Neither prompt nor answer is longer than the model's context. A request without `max_tokens` may use all of the
    context. An audit does not generate the answers but reads them, so a token of an answer costs as much as a token of
    a prompt.
    """
    answer_tokens = min(request.max_tokens or route.context_tokens, route.context_tokens)
    output_tokens = request.num_prompts * request.num_choices * answer_tokens
    answer_nanousd = route.input_nanousd if request.is_audit else route.output_nanousd
    return _input_tokens(request, route) * route.input_nanousd + output_tokens * answer_nanousd


def _input_tokens(request: CompletionRequest, route: Route) -> int:
    """Returns an upper bound of the prompts' tokens.

    The gateway has no tokenizer, so it counts a token for each byte: no text has more tokens than bytes.

    A chat template adds its own text at most once for each message, each part of a message, and the whole chat. It may
    write tools with any indentation, so they count as the whole context. A template that adds more, such as one with a
    loop in a loop, is noticed when the request has ended (`metrics.reservations_exceeded`).
    """
    most = request.num_prompts * route.context_tokens
    if request.has_tools:
        return most
    num_added = request.num_parts + request.num_prompts
    template_bytes = route.template_bytes if request.num_parts else 0
    return min(most, request.num_bytes + num_added * (template_bytes + SPECIAL_TOKENS))
