"""Finds the candidates of a drafter: its likeliest tokens, ranked with the target's sampling noise."""

from dataclasses import dataclass

from torch import Tensor

from kernels.candidates import Candidates, RowSampling, candidates
from kernels.linear import LinearWeight, linear
from kernels.lm_head import BestTokens, Head, best_tokens
from kernels.top_k import top_k


@dataclass(frozen=True, slots=True)
class CandidateHead:
    """weight: [Vd, H]. vocab: [Vd] int64, the target's token id of each weight row; None: the row's index."""

    weight: LinearWeight
    vocab: Tensor | None = None

    def best(self, x: Tensor, count: int) -> BestTokens:
        """Returns the `count` best tokens of each row of x [M, H], or all tokens if the vocabulary is smaller."""
        count = min(count, self.weight.out_features)
        if x.is_cuda:
            return best_tokens(x, Head(data=self.weight.data, scales=self.weight.scales, vocab=self.vocab), count)
        values, columns, totals = top_k(linear(x, self.weight), count)
        return BestTokens(values, columns if self.vocab is None else self.vocab[columns], totals)

    def ranked(self, x: Tensor, count: int, rows: RowSampling) -> Candidates:
        """Returns the best tokens, ranked with the noise of `rows`, and their survival probabilities."""
        return candidates(self.best(x, count), rows)
