"""`CostModel` learns from observed passes how long a pass takes, and `DraftBudget` uses these times.

The passes are simulated: their times come from a formula, or from a seeded generator that imitates a busy machine.
"""

import random
from collections.abc import Sequence

import pytest

from engine.budget import DraftBudget
from engine.config import EngineConfig
from engine.cost import NO_ROWS, ROW_COUNTS, CostModel, PassSize
from engine.draft import Draft, chain
from engine.drafters.ngram import NgramDrafter
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from tests.tiny_model import make_tiny_model


class Machine:
    """A simulated machine. A pass takes time for its rows, its keys, and its products of rows with keys."""

    def __init__(self, *, key_seconds: float, row_key_seconds: float, noise: float = 0.0) -> None:
        self._key_seconds = key_seconds
        self._row_key_seconds = row_key_seconds
        self._noise = noise
        self._random = random.Random(0)

    def exact(self, size: PassSize) -> float:
        return 0.006 + 0.0002 * size.rows + self._key_seconds * size.keys + self._row_key_seconds * size.row_keys

    def run(self, size: PassSize) -> float:
        """Returns the pass's time on a busy machine: every twentieth pass takes three times as long."""
        busy = 3.0 if self._noise and self._random.random() < 0.05 else 1.0
        return self.exact(size) * busy * (1.0 + self._noise * self._random.random())

    def cost_model(self) -> CostModel:
        return CostModel(ROW_COUNTS, [self.exact(PassSize(rows)) for rows in ROW_COUNTS])


def sizes(*parts: tuple[int, int]) -> PassSize:
    """Returns the size of a pass. `parts`: the number of rows and the context length of each sequence."""
    return sum((PassSize.of_rows(rows, context) for rows, context in parts), NO_ROWS)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.05), (0.2, 0.2)])
def test_passes_at_short_contexts_predict_those_at_long_contexts_and_in_mixed_batches(
    noise: float, tolerance: float
) -> None:
    machine = Machine(key_seconds=6e-7, row_key_seconds=1.5e-7, noise=noise)
    cost = machine.cost_model()
    for number in range(400):
        size = sizes((1 + number % 9, 300 + 7 * number))
        cost.observe(size, machine.run(size))
    for size in (
        sizes((1, 6000)),
        sizes((8, 6000)),
        sizes((8, 6000), (4, 100), (1, 100), (1, 100)),
        sizes(*[(4, 2000)] * 8),
        sizes((8, 50)),
    ):
        assert cost.seconds(size) == pytest.approx(machine.exact(size) * (1.0 + noise), rel=tolerance)


def test_the_predicted_time_for_a_row_count_is_corrected_by_real_passes_with_this_count() -> None:
    cost = CostModel((1, 8, 16, 64), (1.0, 1.2, 2.0, 8.0))
    for _ in range(300):
        cost.observe(PassSize(1), 2.0)
        cost.observe(PassSize(8), 4.8)
    assert cost.seconds(PassSize(1)) == pytest.approx(2.0, rel=0.1)
    assert cost.seconds(PassSize(8)) == pytest.approx(4.8, rel=0.1)
    assert cost.seconds(PassSize(64)) > 12.0, "row counts without real passes follow the average correction"
    for _ in range(3):
        cost.observe(PassSize(1), 1000.0)
    assert cost.seconds(PassSize(1)) < 3.0, "three outliers change the prediction only slightly"


def test_a_long_context_is_learned_within_a_few_passes() -> None:
    machine = Machine(key_seconds=6e-7, row_key_seconds=1.5e-7)
    cost = machine.cost_model()
    for _ in range(1000):
        cost.observe(PassSize.of_rows(1, 20), machine.run(PassSize.of_rows(1, 20)))
    for rows in (1, 5, 1, 5, 1, 5):
        cost.observe(PassSize.of_rows(rows, 6000), machine.run(PassSize.of_rows(rows, 6000)))
    for rows in (1, 3, 5):
        size = PassSize.of_rows(rows, 6000)
        assert cost.seconds(size) == pytest.approx(machine.exact(size), rel=0.1)


def test_slower_keys_of_long_contexts_do_not_distort_the_predictions_for_short_contexts() -> None:
    def exact(size: PassSize) -> float:
        return 0.006 + 0.0002 * size.rows + 1e-9 * size.keys**2

    cost = CostModel(ROW_COUNTS, [exact(PassSize(rows)) for rows in ROW_COUNTS])
    for number in range(1000):
        size = PassSize.of_rows(1 + number % 4, 3000 + 37 * number % 3000)
        cost.observe(size, exact(size))

    for context in (0, 10, 500, 3000, 4500, 6000):
        size = PassSize.of_rows(1, context)
        assert cost.seconds(size) == pytest.approx(exact(size), rel=0.4)


def test_the_engine_reports_the_contexts_of_each_pass(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[PassSize] = []
    beside: list[PassSize] = []
    monkeypatch.setattr(DraftBudget, "record_pass", lambda self, size, seconds: decoded.append(size))

    def admit(
        self: DraftBudget, drafts: list[Draft], contexts: list[int], *args: float, others: PassSize, **_: float
    ) -> list[Draft]:
        beside.append(others)
        assert len(contexts) == len(drafts)
        return [draft.only(()) for draft in drafts]

    monkeypatch.setattr(DraftBudget, "admit", admit)
    model = load_model(make_tiny_model(tmp_path_factory.mktemp("model")))
    config = EngineConfig(max_batch_size=2, prefill_chunk=4, draft_budget=3)
    engine = Engine(model, NgramDrafter(), config)
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    engine.add(Request("first", (5, 6, 7), sampling))
    for _ in range(3):  # the prompt, then two tokens
        engine.step()
    engine.add(Request("second", tuple(range(10, 20)), sampling))
    while engine.has_work:
        engine.step()

    assert decoded[:2] == [PassSize.of_rows(1, 3), PassSize.of_rows(1, 4)]
    assert sizes((1, 8), (1, 10)) in decoded, "both sequences decode"
    assert beside[:5] == [NO_ROWS, NO_ROWS, *(PassSize.of_rows(rows, at) for rows, at in ((4, 0), (4, 4), (2, 8)))]


def tokens_per_second(
    machine: Machine, contexts: Sequence[int], acceptance: float, lengths: Sequence[int] | None
) -> float:
    """Simulates 600 decoding steps with drafted chains of 12 nodes, and returns the generated tokens per second.

    lengths: number of nodes verified per sequence; None: a `DraftBudget` decides.
    """
    budget = DraftBudget(machine.cost_model(), 12)
    draws = random.Random(1)
    tokens, seconds = 0, 0.0
    for _ in range(600):
        drafts = [chain([1] * 12, [acceptance**depth for depth in range(1, 13)])] * len(contexts)
        if lengths is not None:
            admitted = [draft.only(range(n)) for draft, n in zip(drafts, lengths, strict=True)]
        elif budget.nodes_to_request(len(contexts)):
            admitted = budget.admit(drafts, contexts, 1e-5)
        else:
            admitted = [draft.only(()) for draft in drafts]
        size = sizes(*((1 + len(draft), context) for draft, context in zip(admitted, contexts, strict=True)))
        taken = machine.run(size)
        budget.record_pass(size, taken)
        seconds += taken
        for draft in admitted:
            accepted = next((depth for depth in range(len(draft)) if draws.random() > acceptance), len(draft))
            budget.record(draft, range(accepted))
            tokens += 1 + accepted
    return tokens / seconds


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("row_key_seconds", [1e-8, 1.5e-7, 6e-7])
@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
def test_with_6000_tokens_of_context_as_many_nodes_are_verified_as_save_time(
    acceptance: float, row_key_seconds: float, noise: float
) -> None:
    def machine() -> Machine:
        return Machine(key_seconds=6e-7, row_key_seconds=row_key_seconds, noise=noise)

    adaptive = tokens_per_second(machine(), [6000], acceptance, None)
    fixed = [tokens_per_second(machine(), [6000], acceptance, [length]) for length in range(13)]
    assert adaptive > 0.94 * max(fixed)


def test_in_a_batch_the_sequence_with_the_longest_context_gets_fewer_nodes() -> None:
    machine, contexts = Machine(key_seconds=6e-7, row_key_seconds=4e-7), [6000, *[100] * 7]
    cost = machine.cost_model()
    for number in range(200):
        size = sizes((1 + number % 5, 30 * number), *[(1 + number % 3, 100)] * 7)
        cost.observe(size, machine.run(size))
    draft = chain([1] * 12, [0.7**depth for depth in range(1, 13)])

    admitted = [len(part) for part in DraftBudget(cost, 12).admit([draft] * 8, contexts, 0.0)]

    assert admitted[0] < min(admitted[1:])
    long = tokens_per_second(machine, contexts, 0.7, None)
    assert long > 0.97 * tokens_per_second(machine, contexts, 0.7, admitted)
    assert long > tokens_per_second(machine, contexts, 0.7, [admitted[1]] * 8), "equal numbers of nodes are slower"
