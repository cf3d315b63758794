"""The log-probabilities of a prompt's own tokens, for requests that echo it."""

from collections.abc import Callable

from torch import Tensor

from engine.sequence import Sequence
from engine.verify import token_logprobs

_SCORED_ROWS = 64  # rows whose logits are in memory at the same time


def score_prompt(sequence: Sequence, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
    """Adds the log-probability of the prompt token after each token that the pass has read.

    Args:
        hidden: [M, H]. Hidden states of the M prompt tokens from position `sequence.num_computed` on.
        logits_of: returns the logits [M, V] of rows of `hidden`.
    """
    prompt, first = sequence.request.prompt_token_ids, sequence.num_computed
    del sequence.prompt_logprobs[first:]  # a preempted prompt is read again
    following = prompt[first + 1 : first + 1 + len(hidden)]
    count = sequence.request.sampling.num_logprobs or 0
    for start in range(0, len(following), _SCORED_ROWS):
        tokens = following[start : start + _SCORED_ROWS]
        pairs = zip(logits_of(hidden[start : start + len(tokens)]), tokens, strict=True)
        sequence.prompt_logprobs += [token_logprobs(row, token, count) for row, token in pairs]
