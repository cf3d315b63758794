"""Builds draft trees level by level on the device, for drafters that must run once per level.

A pool stores all C candidates for each of B trees. The survival of a candidate is the product of the probabilities
along its path. On each level the drafter runs W nodes, and the pool gets K children of each. The W likeliest of these
candidates are the nodes that the drafter runs on the next level. At the end, the N likeliest candidates of the whole
pool become the tree. They always form a tree, because a candidate is never likelier than its parent.

The pool needs about a dozen small PyTorch operations per level, which do not wait for the host. They take little time
compared with the drafter's matrix products.

Source: Li et al. 2024, arXiv:2406.16858 (EAGLE-2).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.tree import Trees

_LEAST_SURVIVAL = 0.01  # candidates with a smaller survival are dropped


@dataclass(frozen=True, slots=True)
class Pool:
    """All candidates of B trees that are growing.

    tokens: [B, C] int64.
    parents: [B, C] int64. Index of the parent in the pool; -1 if the parent is the last token of the sequence.
    survival: [B, C] float32; 0 for empty entries.
    """

    tokens: Tensor
    parents: Tensor
    survival: Tensor

    @classmethod
    def empty(cls, num_trees: int, num_candidates: int, device: torch.device) -> "Pool":
        zeros = torch.zeros(num_trees, num_candidates, dtype=torch.int64, device=device)
        return cls(zeros, torch.full_like(zeros, -1), torch.zeros_like(zeros, dtype=torch.float32))

    def add_level(self, first: int, nodes: Tensor | None, tokens: Tensor, chances: Tensor) -> None:
        """Adds a level's candidates to the pool, from index `first` on.

        Args:
            nodes: [B, W] int64, the parents' indices in the pool; None for the first level, whose only parent is the
                last token of the sequence.
            tokens: [B, W, K] int64. chances: [B, W, K] float32, probability of each candidate after its parent.
        """
        B, W, K = tokens.shape
        level = slice(first, first + W * K)
        node_survival = chances.new_ones(B, 1) if nodes is None else self.survival.gather(1, nodes)
        survival = node_survival.unsqueeze(-1) * chances.clamp(max=1.0)  # [B, W, K]
        self.tokens[:, level] = tokens.flatten(1)
        self.survival[:, level] = torch.where(survival >= _LEAST_SURVIVAL, survival, 0.0).flatten(1)
        if nodes is not None:
            self.parents[:, level] = nodes.repeat_interleave(K, dim=1)

    def frontier(self, first: int, count: int, width: int) -> Tensor:
        """Returns [B, width] int64: indices of the `width` likeliest of the candidates first .. first + count - 1."""
        return first + self.survival[:, first : first + count].topk(width, dim=1).indices

    def trees(self, budget: int) -> Trees:
        """Returns trees of the `budget` likeliest candidates. Of equally likely candidates, earlier ones are preferred.

        Nodes have the order of the pool, so parents come before their children.
        """
        B, C = self.tokens.shape
        ranked = self.survival.argsort(dim=1, descending=True, stable=True)[:, :budget]
        # [B, N], where the index C stands for an empty entry
        selected = torch.where(self.survival.gather(1, ranked) > 0.0, ranked, C).sort(dim=1).values
        counts = (selected < C).sum(1)
        nodes = torch.arange(selected.shape[1], device=selected.device).expand(selected.shape)
        node_of = selected.new_full((B, C + 1), -1).scatter_(1, selected, nodes)  # pool index -> node of the tree
        indices = selected.clamp(max=C - 1)  # valid indices, also for empty entries
        parents = self.parents.gather(1, indices)
        parents = torch.where(parents >= 0, node_of.gather(1, parents.clamp(min=0)), -1)
        real = selected < C
        tokens = torch.where(real, self.tokens.gather(1, indices), 0)
        survival = torch.where(real, self.survival.gather(1, indices), 0.0)
        missing = (0, budget - selected.shape[1])  # a pool may have fewer candidates than the budget
        return Trees(
            pad(tokens, missing), pad(torch.where(real, parents, -2), missing, value=-2), pad(survival, missing), counts
        )
