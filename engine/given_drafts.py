"""Drafts that are taken from the request itself: from an answer to audit, or from a predicted answer."""

from collections.abc import Sequence as Many

from engine.adjust import without_excluded
from engine.draft import EMPTY_DRAFT, MAX_DEPTH, Draft, chain
from engine.sequence import Sequence

_EXPECTED_NODES_PER_STEP = 256  # nodes of all audited answers together; bounds the memory of the logits
_PREDICTED_NODES = 16  # nodes of the prediction of one sequence
# nodes of all predictions together; bounded because they delay the other requests of the step
_PREDICTED_NODES_PER_STEP = 32


def given_drafts(decoding: Many[Sequence], room: int) -> dict[Sequence, Draft]:
    """Returns drafts of the sequences for which the engine's drafter is not needed.

    Args:
        room: number of free cache slots, which is the maximum number of nodes of all drafts.
    """
    verified = [sequence for sequence in decoding if sequence.request.expected_token_ids]
    nodes = min(MAX_DEPTH, min(room, _EXPECTED_NODES_PER_STEP) // max(1, len(verified)))
    drafts = {sequence: _expected_chain(sequence, nodes) for sequence in verified}
    room -= sum(map(len, drafts.values()))
    chains = {sequence: sequence.prediction for sequence in decoding if sequence.prediction and sequence not in drafts}
    nodes = min(_PREDICTED_NODES, min(room, _PREDICTED_NODES_PER_STEP) // max(1, len(chains)))
    for sequence, prediction in chains.items():
        tokens = prediction.upcoming(min(nodes, sequence.num_remaining - 1))
        if draft := without_excluded(chain(tokens, [1.0] * len(tokens)), sequence):
            drafts[sequence] = draft
    return drafts


def _expected_chain(sequence: Sequence, max_nodes: int) -> Draft:
    """Returns the next expected tokens as a draft. Once a generated token differs from the expected one, the draft is
    empty."""
    expected, count = sequence.request.expected_token_ids, sequence.num_generated
    if tuple(sequence.tokens[len(sequence.tokens) - count :]) != expected[:count]:
        return EMPTY_DRAFT
    tokens = expected[count : count + min(max_nodes, sequence.num_remaining - 1)]
    return chain(tokens, [1.0] * len(tokens))
