"""Checks that an artifact fits its target model."""

import itertools
from collections.abc import Mapping

from workers.exports.errors import invalid
from workers.exports.target import Target
from workers.exports.tensors import Stored


def check_sizes(target: Target, *, hidden: int, vocab: int) -> None:
    """Raises: ExchangeError."""
    if (hidden, vocab) != (target.hidden_size, target.vocab_size):
        raise invalid(
            f"the speculator is for hidden size {hidden} and {vocab} tokens, "
            f"the model has {target.hidden_size} and {target.vocab_size}"
        )


def check_taps(taps: object, target: Target) -> None:
    """Checks the list of the target's layers whose inputs the drafter reads.

    Raises: ExchangeError: a number is not in 0..num_layers. The number num_layers stands for the last layer's output.
    """
    if (
        not isinstance(taps, list)
        or not taps
        or not all(type(tap) is int and 0 <= tap <= target.num_layers for tap in taps)
    ):
        raise invalid(f"tapped layers must be in 0..{target.num_layers}, got {taps!r:.80}")


def check_vocab(vocab: list[int], target: Target) -> None:
    """Raises: ExchangeError."""
    if not all(a < b for a, b in itertools.pairwise(vocab)) or vocab[0] < 0 or vocab[-1] >= target.vocab_size:
        raise invalid(f"the draft vocabulary must be ascending ids below {target.vocab_size}")


def check_offsets(tensors: Mapping[str, Stored], target: Target) -> None:
    """Checks the draft vocabulary in the tensor `d2t`. Entry i is the token id of draft id i, minus i.

    Raises: ExchangeError.
    """
    if (offsets := tensors.get("d2t")) is not None:
        check_vocab([draft_id + offset for draft_id, offset in enumerate(offsets.integers())], target)
