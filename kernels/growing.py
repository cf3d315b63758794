"""Draft trees that grow level by level on the device, for drafters that must run once per level.

A pool stores all C candidates of each of B trees. A candidate's survival is the product of the probabilities along its
path. Each level adds K candidates as children of each of W nodes; the likeliest W of them are the nodes that the
drafter runs next, and the likeliest N of the whole pool become the tree. A candidate is never likelier than its parent,
so the likeliest candidates of a pool always form a tree.

A level takes about a dozen small operations of PyTorch without synchronization with the host. Their time is negligible
compared with the level's matrix products, which read a layer and a head.

Source: Li et al. 2024, arXiv:2406.16858 (EAGLE-2).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.tree import Trees

_LEAST_SURVIVAL = 0.01  # less likely nodes are never verified


@dataclass(frozen=True, slots=True)
class Pool:
    """tokens, parents: [B, C] int64; a parent is an index in the pool, -1 for the last token. survival: [B, C] float32.

    A survival of 0 marks an empty entry.
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
            nodes: [B, W] int64, indices in the pool; None for the first level, whose only node is the last token.
            tokens: [B, W, K] int64. chances: [B, W, K] float32, probability of each candidate given its node.
        """
        B, W, K = tokens.shape
        own = slice(first, first + W * K)
        above = chances.new_ones(B, 1) if nodes is None else self.survival.gather(1, nodes)
        survival = above.unsqueeze(-1) * chances.clamp(max=1.0)
        self.tokens[:, own] = tokens.flatten(1)
        self.survival[:, own] = torch.where(survival >= _LEAST_SURVIVAL, survival, 0.0).flatten(1)
        if nodes is not None:
            self.parents[:, own] = nodes.repeat_interleave(K, dim=1)

    def frontier(self, first: int, count: int, width: int) -> Tensor:
        """[B, width] int64: indices of the likeliest `width` among `count` candidates from `first` on."""
        return first + self.survival[:, first : first + count].topk(width, dim=1).indices

    def trees(self, budget: int) -> Trees:
        """Returns the `budget` likeliest candidates, parents before children; equally likely ones in order of addition.

        Candidates are sorted by their index in the pool, where parents come first; index C stands for no candidate.
        """
        B, C = self.tokens.shape
        ranked = self.survival.argsort(dim=1, descending=True, stable=True)[:, :budget]
        places = torch.where(self.survival.gather(1, ranked) > 0.0, ranked, C).sort(dim=1).values  # [B, N], C: empty
        counts = (places < C).sum(1)
        nodes = torch.arange(places.shape[1], device=places.device).expand(places.shape)
        node_of = places.new_full((B, C + 1), -1).scatter_(1, places, nodes)
        kept = places.clamp(max=C - 1)
        parents = self.parents.gather(1, kept)
        parents = torch.where(parents >= 0, node_of.gather(1, parents.clamp(min=0)), -1)
        real = places < C
        tokens = torch.where(real, self.tokens.gather(1, kept), 0)
        survival = torch.where(real, self.survival.gather(1, kept), 0.0)
        missing = (0, budget - places.shape[1])  # a small pool has fewer candidates
        return Trees(
            pad(tokens, missing), pad(torch.where(real, parents, -2), missing, value=-2), pad(survival, missing), counts
        )
