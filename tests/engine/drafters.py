"""Drafters for tests: `OracleDrafter` knows the answers but makes errors at a given rate; `BrokenDrafter` fails.

`every_drafter` makes drafters of all kinds with random weights.
"""

import random
from collections.abc import Mapping
from collections.abc import Sequence as Many

import torch

from engine.draft import Draft, chain
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.errors import DrafterError
from engine.models.base import Model
from engine.sequence import Sequence
from tests.engine.tiny_speculators import make_block, make_mtp


class OracleDrafter(Drafter):
    """Proposes each request's true answer, in which each token is replaced by a random one with probability `error`.

    With `tree`, each token of the answer has two wrong siblings, so that the accepted nodes are not consecutive.
    """

    name = "oracle"

    def __init__(
        self,
        answers: Mapping[str, Many[int]],
        *,
        max_depth: int,
        error: float,
        tree: bool,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        self.max_depth = max_depth
        self._answers = answers
        self._error = error
        self._tree = tree
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [self._propose(sequence, budget) for sequence in sequences]

    def _guess(self, token: int) -> int:
        return self._random.randrange(self._vocab_size) if self._random.random() < self._error else token

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        continuation = self._answers[sequence.request.request_id][sequence.num_generated :][: self.max_depth]
        if not self._tree:
            guesses = [self._guess(token) for token in continuation[:budget]]
            return chain(guesses, [0.9**depth for depth in range(1, len(guesses) + 1)])
        tokens: list[int] = []
        parents: list[int] = []
        survival: list[float] = []
        trunk = -1  # the node that stands for the answer's previous token
        for token in continuation:
            parent_survival = survival[trunk] if trunk >= 0 else 1.0
            guess, step = self._guess(token), self._random.randrange(1, self._vocab_size // 2)
            siblings = (
                guess - step,
                guess,
                guess + step,
            )  # three different tokens, because verification accepts only the first of equal siblings
            first = len(tokens)
            for sibling in siblings:
                tokens.append(sibling % self._vocab_size)
                parents.append(trunk)
                survival.append(parent_survival * 0.8)
            trunk = first + 1
        kept = range(min(budget, len(tokens)))
        return Draft(tuple(tokens), tuple(parents), tuple(survival)).only(kept)


class BrokenDrafter(Drafter):
    """Raises an error in two of three calls, and proposes invalid drafts in the third."""

    name = "broken"
    max_depth = 4

    def __init__(self) -> None:
        self.calls = 0

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        self.calls += 1
        if self.calls % 3 == 0:
            raise DrafterError("on purpose")
        if self.calls % 3 == 1:
            raise ZeroDivisionError("a fault nobody foresaw")
        return [chain([10**9, -7, 3], [0.9, 0.8, 0.7])] * len(sequences)


def random_medusa(model: Model) -> MedusaDrafter:
    """Makes Medusa heads with random weights. They share the target's lm_head, so the target accepts some drafts."""
    torch.manual_seed(0)
    size = model.config.vocab_size
    config = MedusaConfig(hidden_size=model.config.hidden_size, num_heads=3, draft_vocab_size=size)
    heads = MedusaHeads(config, torch.arange(size))
    torch.nn.init.normal_(heads.weight, std=0.3)
    return MedusaDrafter(heads, model)


def every_drafter(model: Model, draft_model: Model, tokens_of: Mapping[str, Many[int]]) -> list[Drafter]:
    """Returns drafters of all kinds for the target `model`. Both models must come from tests.tiny_model.

    tokens_of: request id -> the true answer, which the oracle drafters propose.
    """
    vocab_size = model.config.vocab_size
    return [
        NgramDrafter(),
        SuffixDrafter(past_tokens=2000),
        random_medusa(model),
        DraftModelDrafter(draft_model, model),
        CombinedDrafter([random_medusa(model), SuffixDrafter(past_tokens=100)]),
        BlockDrafter(make_block(), model),
        BlockDrafter(make_block(speculators_model_type="dspark", markov_rank=8), model),
        MtpDrafter(DensePrediction(make_mtp(), model), model, max_depth=4),
        OracleDrafter(tokens_of, max_depth=6, error=0.3, tree=False, vocab_size=vocab_size),
        OracleDrafter(tokens_of, max_depth=5, error=0.2, tree=True, vocab_size=vocab_size),
        BrokenDrafter(),
    ]
