"""Trees that grow level by level on the device equal those that grow on the host.

Shape letters: B trees, W nodes that run on each level, K candidates as children of each of these nodes.
"""

import torch

from engine.drafters.growing_tree import GrowingTree
from kernels.growing import Pool

B, W, K, DEPTHS = 3, 3, 4, 4


def test_trees_grown_on_the_device_equal_trees_grown_on_the_host() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 99, (DEPTHS, B, W, K), generator=generator)
    chances = (0.4 + 0.6 * torch.rand(DEPTHS, B, W, K, generator=generator)).sort(-1, descending=True).values
    pool = Pool.empty(B, K + (DEPTHS - 1) * W * K, torch.device("cpu"))
    hosts = [GrowingTree(10**6) for _ in range(B)]  # a huge budget, because the pool is not limited by a budget either
    frontier, level_start = None, 0  # [B, W], and the pool index of the level's first candidate
    for depth in range(DEPTHS):
        width = W if depth else 1
        pool.add_level(level_start, frontier, tokens[depth, :, :width], chances[depth, :, :width])
        for b, host in enumerate(hosts):
            parents = [-1] if frontier is None else frontier[b].tolist()
            host.start_level()
            for index, node in enumerate(parents):
                host.offer(node, tokens[depth, b, index].tolist(), chances[depth, b, index].tolist())
        frontier = pool.frontier(level_start, width * K, W)
        level_start += width * K
        assert all(host.frontier(W) == frontier[b].tolist() for b, host in enumerate(hosts))

    for b, host in enumerate(hosts):
        expected = host.draft().likeliest(12)
        trees = pool.trees(12)
        assert trees.counts[b] == 12
        assert tuple(trees.tokens[b].tolist()) == expected.tokens
        assert tuple(trees.parents[b].tolist()) == expected.parents
        torch.testing.assert_close(trees.survival[b], torch.tensor(expected.survival))


def test_nodes_with_a_survival_below_one_percent_are_left_out_with_their_descendants() -> None:
    pool = Pool.empty(1, 6, torch.device("cpu"))
    pool.add_level(0, None, torch.tensor([[[5, 6]]]), torch.tensor([[[0.5, 0.001]]]))  # token 6 is too unlikely
    # Tokens 7 and 8 are children of node 1 (token 6), tokens 9 and 10 of node 0 (token 5).
    pool.add_level(
        2, torch.tensor([[1, 0]]), torch.tensor([[[7, 8], [9, 10]]]), torch.tensor([[[1.0, 1.0], [0.5, 0.5]]])
    )
    trees = pool.trees(8)
    assert trees.counts.tolist() == [3]
    assert trees.tokens.tolist() == [[5, 9, 10, 0, 0, 0, 0, 0]]
    assert trees.parents.tolist() == [[-1, 0, 0, -2, -2, -2, -2, -2]]
