"""Latent attention in its absorbed form agrees with attention over full keys and values, and rows are independent.

The names of sizes are those of kernels/mla.py; HQ is the number of heads.
"""

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionRows
from kernels.linear import pack
from kernels.mla import LatentShape, Rotation, latent_attention, latent_write, rotate_reference

HQ, R, N, P, V, LENGTH = 3, 32, 24, 16, 20, 37
SHAPE = LatentShape(rank=R, nope_dim=N, rope_dim=P, value_dim=V, interleaved=True, scale=0.3, norm_eps=1e-6)
ANGLES = torch.outer(torch.arange(64.0), 1.0 / 100 ** (torch.arange(P // 2) / P))
ROTATION = Rotation(ANGLES.cos(), ANGLES.sin())


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(rows: Tensor, dtype: torch.dtype, num_drafted: int = 0) -> Tensor:
    """Runs latent attention for the rows at the given positions [M]. The cache has the latents of all LENGTH positions.

    The slots of the last `num_drafted` keys of each row are in its path, the others in the slot table.
    """
    key_up, value_up = random(HQ, N, R, seed=0).to(dtype), random(HQ, V, R, seed=1).to(dtype)
    slots = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
    cache = torch.zeros(LENGTH, 1, R + P, dtype=dtype)
    positions = torch.arange(LENGTH)
    norm = random(R, seed=3) + 1
    latent_write(random(LENGTH, R + P, seed=4), norm, SHAPE, ROTATION, positions, slots, cache)
    path_lens = torch.minimum(rows + 1, torch.tensor(num_drafted))
    paths = torch.zeros(len(rows), max(1, num_drafted), dtype=torch.int32)
    for index, (row, length) in enumerate(zip(rows.tolist(), path_lens.tolist(), strict=True)):
        paths[index, :length] = slots[row + 1 - length : row + 1]
    attention = AttentionRows(slots.int().view(1, -1), torch.zeros_like(rows), rows + 1 - path_lens, paths, path_lens)
    packed_keys, packed_values = tuple(pack(w.t().contiguous()) for w in key_up), tuple(pack(w) for w in value_up)
    q = random(LENGTH, HQ, N + P, seed=5)[rows]
    return latent_attention(q, packed_keys, packed_values, SHAPE, ROTATION, rows, cache, attention)


def test_the_absorbed_form_equals_attention_over_full_keys_and_values() -> None:
    latent, q = random(LENGTH, R + P, seed=4), random(LENGTH, HQ, N + P, seed=5)
    # c is the normalised latent, as in the formulas of kernels/mla.py.
    c = latent[:, :R] * torch.rsqrt(latent[:, :R].pow(2).mean(-1, keepdim=True) + 1e-6) * (random(R, seed=3) + 1)

    def rotate(x: Tensor) -> Tensor:
        return rotate_reference(x, ROTATION.cosines[:LENGTH], ROTATION.sines[:LENGTH], interleaved=True)

    keys = torch.cat((torch.einsum("lr,hnr->lhn", c, random(HQ, N, R, seed=0)),
                      rotate(latent[:, R:].unsqueeze(1)).expand(-1, HQ, -1)), dim=-1)  # fmt: skip
    values = torch.einsum("lr,hvr->lhv", c, random(HQ, V, R, seed=1))
    scores = torch.einsum("mhd,lhd->hml", torch.cat((q[..., :N], rotate(q[..., N:])), dim=-1), keys) * SHAPE.scale
    scores += torch.full((LENGTH, LENGTH), float("-inf")).triu(1)  # the causal mask
    expected = torch.einsum("hml,lhv->mhv", scores.softmax(-1), values)

    torch.testing.assert_close(run(torch.arange(LENGTH), torch.float32), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_of_a_row_does_not_depend_on_other_rows_or_on_which_keys_are_drafted(dtype: torch.dtype) -> None:
    whole = run(torch.arange(LENGTH), dtype)
    for rows in ([0], [36], [15, 16, 17], list(range(20, 37))):
        for num_drafted in (0, 1, 9):
            assert torch.equal(run(torch.tensor(rows), dtype, num_drafted), whole[rows]), (rows, num_drafted)


def test_interleaved_and_half_split_layouts_give_the_same_rotation() -> None:
    x = random(5, 2, P, seed=6)
    interleaved = torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
    args = ROTATION.cosines[:5], ROTATION.sines[:5]
    assert torch.equal(
        rotate_reference(x, *args, interleaved=False), rotate_reference(interleaved, *args, interleaved=True)
    )
