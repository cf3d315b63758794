"""The messages of rank 0 reach the other ranks unchanged, and all ranks keep the same adapters."""

import pytest
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.tensor_parallel.adapters import KeptAdapters, SentAdapters
from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.group import Group
from engine.tensor_parallel.messages import Kind, PassMessage
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows
from kernels.linear import pack, unpack
from kernels.lora import LoraLayer, LoraWeight
from tests.tiny_model import tiny_config


def test_a_rank_receives_a_pass_with_the_key_slots_of_every_row() -> None:
    """Two of three sequences have rows in the pass: one is in the middle of its prompt, one has a draft tree."""
    tables = torch.arange(3 * 50, dtype=torch.int32).view(3, 50)
    attention = AttentionRows(
        slot_tables=tables,
        seqs=torch.tensor([2, 2, 0, 0, 0]),
        prefix_lens=torch.tensor([6, 7, 3, 3, 3]),
        paths=torch.tensor([[0, 0], [0, 0], [0, 0], [140, 0], [140, 141]], dtype=torch.int32),
        path_lens=torch.tensor([0, 0, 0, 1, 2]),
    )
    rows = DecoderRows(torch.tensor([5, 6, 2, 3, 4]), torch.tensor([105, 106, 2, 140, 141]), attention)
    message = PassMessage(
        cache_id=3, num_slots=150, dropped_caches=[1, 2], layers=range(2), tap_layers=(0, 2),
        runs=[(7, 2, 3)], token_ids=torch.tensor([9, 8, 7, 6, 5]), rows=rows,
    )  # fmt: skip

    received = PassMessage.of_vector(message.to_vector())

    for row in range(5):
        assert torch.equal(received.rows.attention.slots(row), attention.slots(row))
    assert received.rows.attention.slot_tables.shape == (2, 7)  # only the slots that the rows read are sent
    received.rows.attention.check()
    assert torch.equal(received.rows.positions, rows.positions)
    assert torch.equal(received.rows.slots, rows.slots)
    assert torch.equal(received.token_ids, message.token_ids)
    assert (received.cache_id, received.num_slots) == (3, 150)
    lists = (received.dropped_caches, received.layers, received.tap_layers, received.runs)
    assert lists == ([1, 2], [0, 1], [0, 2], [(7, 2, 3)])


def make_layers(config: ModelConfig, dtype: torch.dtype, seed: int) -> tuple[LoraLayer, ...]:
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(4, config.hidden_size, generator=generator).to(dtype)
    up = torch.randn(2 * config.intermediate_size, 4, generator=generator).to(dtype)
    return LoraLayer(), LoraLayer(gate_up=LoraWeight(pack(down), pack(up)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_forget_the_same_adapters_and_rank_0_sends_these_again(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    config = ModelConfig.from_values(tiny_config("llama").to_dict())
    follower = KeptAdapters(Cut(config, 1, 2))
    sent: list[Kind] = []

    def send(group: Group, kind: Kind, content: Tensor) -> None:
        sent.append(kind)
        follower.add(content)

    monkeypatch.setattr("engine.tensor_parallel.adapters.send", send)
    monkeypatch.setattr("engine.tensor_parallel.adapters._MAX_KEPT", 2)
    leader = SentAdapters(Group(0, 2), Cut(config, 0, 2))
    adapters = [make_layers(config, dtype, seed) for seed in range(3)]
    for use in (
        [0],
        [1],
        [0, 1, 2],
        [0],
        [0],
        [2],
        [1, 0],
    ):  # the third pass uses three adapters, but only two are kept
        runs = [(leader.number_of(adapters[index]), first, 1) for first, index in enumerate(use)]
        first_rank, (second_rank, _) = leader.runs(runs), follower.runs(runs)
        for index, own, other in zip(use, first_rank, second_rank, strict=True):
            whole = adapters[index][1].gate_up
            parts = [run.layers[1].gate_up for run in (own, other)]
            assert whole is not None
            gate, up = unpack(whole.up).chunk(2)
            for part, gates, ups in zip(parts, gate.chunk(2), up.chunk(2), strict=True):
                assert part is not None
                assert torch.equal(unpack(part.up), torch.cat((gates, ups)))
                assert torch.equal(unpack(part.down), unpack(whole.down))
            assert own.layers[0] == LoraLayer()
    assert len(sent) == 4  # three adapters, of which one was forgotten and sent again
