"""A mixture of experts (kernels/experts.py) in tensor parallelism. Every rank has a part of each expert's outputs.

A rank computes its columns of the activations of all chosen experts. One gather then gives every rank all columns for
all pairs of a row and an expert. From these, the rank computes its own columns of the result.
"""

import torch
from torch import Tensor

from engine.tensor_parallel.exchange import Exchange
from kernels.experts import Experts, add_experts
from kernels.linear import linear
from kernels.swiglu import swiglu


def mix_own_columns(x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts, exchange: Exchange) -> Tensor:
    """Returns the rank's columns of the weighted sum of each row's experts, float32.

    x: [M, H] in the experts' dtype. chosen: [M, K] int64. weights: [M, K] float32.
    """
    (M, K), first = chosen.shape, experts.experts[0]
    pairs = [(index, *(chosen == index).nonzero(as_tuple=True)) for index in chosen.unique().tolist()]
    own = torch.empty(M, K, first.gate_up.out_features // 2, dtype=x.dtype)
    for index, rows, places in pairs:
        own[rows, places] = swiglu(linear(x[rows], experts.experts[index].gate_up), x.dtype)
    activated = exchange.activated(own.view(M * K, -1), first.down.in_features).view(M, K, -1)
    products = torch.empty(M, K, first.down.out_features)
    for index, rows, places in pairs:
        products[rows, places] = linear(activated[rows, places], experts.experts[index].down)
    return add_experts(products, chosen, weights)
