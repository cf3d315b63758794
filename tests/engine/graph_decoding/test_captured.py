"""Graph decoding as on a GPU: programs of CUDA kernels are captured once and then replayed, one step ahead of the host.

The kernels run in Triton's interpreter, and tests/engine/graph_decoding/captured.py imitates CUDA graphs. Tests
marked `gpu` use real graphs.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from tests.engine.graph_decoding.captured import CapturingDevice, use_cuda_kernels
from tests.engine.graph_decoding.late_device import install
from tests.engine.graph_decoding.test_drafts import DRAFTERS
from tests.kernels.cuda.device import HAS_GPU
from tests.tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(HAS_GPU, reason="a GPU captures real graphs")

KINDS: dict[str, Callable[[Model], Drafter]] = {"none": lambda _: NoDrafter(), **DRAFTERS}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CapturingDevice:
    device = CapturingDevice()
    install(monkeypatch, device)
    use_cuda_kernels(monkeypatch)
    return device


def make_requests() -> list[Request]:
    """Makes a greedy request and a shorter one with top-p.

    With these lengths, the graph for two sequences and the graph for one sequence run three times each. A graph is
    replayed from its third run on.
    """
    params = (
        SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=4, temperature=0.8, top_p=0.9, seed=2**63 + 5, ignore_eos=True),
    )
    return [
        Request(f"r{index}", tuple(range(9 * index, 9 * index + 5)), sampling) for index, sampling in enumerate(params)
    ]


# Kinds of drafters that always run. The others run only with `-m soak`: the interpreter takes up to a minute per kind.
IN_THE_SUITE = ("medusa",)


@pytest.mark.parametrize(
    "kind", [kind if kind in IN_THE_SUITE else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
def test_captured_graphs_return_the_tokens_of_synchronous_steps(
    tmp_path: Path, device: CapturingDevice, kind: str
) -> None:
    model = load_model(make_tiny_model(tmp_path, num_layers=4 if "eagle" in kind else 2), device="cpu")
    plain = generate(Engine(model, NoDrafter(), EngineConfig(graph_decoding="off")), make_requests())
    engine = Engine(model, KINDS[kind](model), EngineConfig(graph_decoding="on", draft_budget=3, max_batch_size=2))
    actual = generate(engine, make_requests())
    assert [c.token_ids for c in actual] == [c.token_ids for c in plain]
    assert device.num_replays > 1
    assert engine.scheduler.pool.num_available == engine.cache.num_slots
