"""The scheduler admits and preempts sequences; each cache slot is free or belongs to one block or sequence."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.slots import BLOCK, Block, SlotPool
from engine.request import Request, SamplingParams, SpeculationStats
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence


def make_sequence(name: str, tokens: list[int], *, max_tokens: int = 50, root: str | None = None) -> Sequence:
    request = Request(name, tuple(tokens), SamplingParams(max_tokens=max_tokens))
    return Sequence(request, list(tokens), root=root, stats=SpeculationStats())


def make_scheduler(num_slots: int, *, max_batch_size: int = 4, prefill_chunk: int = 32) -> Scheduler:
    return Scheduler(num_slots, max_batch_size=max_batch_size, prefill_chunk=prefill_chunk, prefill_rows=64)


def run_pass(scheduler: Scheduler, plan: Plan, *, num_drafted: int = 0, num_kept: int = 0) -> None:
    """Executes a plan like the engine. Each new token depends only on the text before it."""
    for sequence, end in plan.prefills:
        if end == len(sequence.tokens):
            scheduler.commit(sequence, [next_token(sequence.tokens)], ())
        else:
            scheduler.advance(sequence, end)
    for sequence in plan.decoding:
        count = min(num_drafted, scheduler.pool.num_available)
        scheduler.allocate_drafts(sequence, count)
        new: list[int] = []
        for _ in range(min(num_kept, count) + 1):
            new.append(next_token(sequence.tokens + new))
        scheduler.commit(sequence, new, range(len(new) - 1))
    for sequence in list(scheduler.running.values()):
        if sequence.num_remaining <= 0:
            scheduler.remove(sequence)


def next_token(tokens: list[int]) -> int:
    return (sum(tokens) * 31 + len(tokens)) % 5


def check_slots(scheduler: Scheduler) -> None:
    """Checks that each slot is free, in one block, or in one sequence, and that blocks count their users correctly."""
    pool = scheduler.pool
    blocks = list(pool._blocks.values())
    slots = list(pool._free) + [slot for block in blocks for slot in block.slots]
    users: Counter[int] = Counter()
    for sequence in scheduler.running.values():
        assert sequence.slots[: BLOCK * len(sequence.blocks)] == [s for b in sequence.blocks for s in b.slots]
        slots += sequence.slots[BLOCK * len(sequence.blocks) :] + sequence.draft_slots
        users.update(id(block) for block in sequence.blocks)
    assert sorted(slots) == list(range(pool.num_slots))
    assert all(block.num_users == users[id(block)] for block in blocks)
    assert set(pool._idle) == {block for block in blocks if block.num_users == 0}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_slot_is_lost_or_used_twice_and_every_request_finishes(data: st.DataObject) -> None:
    scheduler = make_scheduler(data.draw(st.integers(110, 200)), prefill_chunk=data.draw(st.sampled_from([7, 16, 32])))
    common = [1, 2, 3, 4] * 6
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 24)), max_size=9))
    sequences = [
        make_sequence(f"s{index}", common[:num_shared] + [index] * num_own, max_tokens=num_answer, root="ab"[index % 2])
        for index, (num_own, num_answer, num_shared) in enumerate(lengths)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(3000):
        if not scheduler.running and not scheduler.waiting:
            break
        if scheduler.running and data.draw(st.integers(0, 30)) == 0:
            scheduler.remove(next(iter(scheduler.running.values())))
        plan = scheduler.schedule()
        check_slots(scheduler)
        run_pass(scheduler, plan, num_drafted=data.draw(st.integers(0, 5)), num_kept=data.draw(st.integers(0, 3)))
        check_slots(scheduler)
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.pool.num_available == scheduler.pool.num_slots


def test_the_latest_sequence_is_preempted_and_later_continues_its_answer() -> None:
    scheduler = make_scheduler(64)
    first, second = (make_sequence(name, [token] * 20, max_tokens=40) for name, token in (("a", 1), ("b", 2)))
    scheduler.add(first)
    scheduler.add(second)
    while scheduler.num_preemptions == 0:
        run_pass(scheduler, scheduler.schedule())
    answer = list(second.tokens)
    assert list(scheduler.running) == ["a"]
    assert second.slots == []
    assert second.num_computed == 0
    while "b" not in scheduler.running:
        run_pass(scheduler, scheduler.schedule())
    assert second.tokens[: len(answer)] == answer
    assert second.num_computed >= BLOCK, "the cached blocks of the sequence are used again"


def test_a_prefix_is_shared_only_by_sequences_with_the_same_root() -> None:
    scheduler = make_scheduler(400)
    for name, root in (("a", None), ("b", None), ("c", "adapter")):  # adapters have different keys and values
        scheduler.add(make_sequence(name, [7] * 40, root=root))
        run_pass(scheduler, scheduler.schedule())
        run_pass(scheduler, scheduler.schedule())
    a, b, c = scheduler.running.values()
    assert a.slots[:32] == b.slots[:32]
    assert not set(a.slots) & set(c.slots)
    assert (a.stats.num_cached_tokens, b.stats.num_cached_tokens, c.stats.num_cached_tokens) == (0, 32, 0)


def test_sequences_that_compute_the_same_prefix_concurrently_share_it_afterwards() -> None:
    scheduler = make_scheduler(400)
    for name in "ab":
        scheduler.add(make_sequence(name, [7] * 31))
    run_pass(scheduler, scheduler.schedule())
    a, b = scheduler.running.values()
    assert a.slots[:16] == b.slots[:16]
    assert b.num_tabled == 0, "the slot table must be written again"
    check_slots(scheduler)


def test_chunks_end_at_multiples_of_the_chunk_size_for_any_length_of_the_cached_prefix() -> None:
    scheduler = make_scheduler(400, prefill_chunk=24)
    scheduler.add(make_sequence("a", [7] * 20))
    run_pass(scheduler, scheduler.schedule())
    scheduler.add(make_sequence("b", [7] * 60))
    ends = []
    while "b" not in scheduler.running or not scheduler.running["b"].is_decoding:
        plan = scheduler.schedule()
        ends += [end for sequence, end in plan.prefills if sequence.request.request_id == "b"]
        run_pass(scheduler, plan)
    assert ends == [24, 48, 60]  # multiples of the chunk size 24, although the first 16 tokens are cached


class CountedTokens(list[int]):
    """A list of tokens that counts how many tokens are read from it."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.num_read += len(self)
        return super().__iter__()


def test_a_waiting_prompt_with_a_cached_prefix_is_not_looked_up_again_at_each_step() -> None:
    scheduler = Scheduler(4900, max_batch_size=4, prefill_chunk=1024, prefill_rows=4096)
    first = make_sequence("first", [1] * 4000, max_tokens=900)
    waiting = make_sequence("waiting", [1] * 4000 + [2] * 960)
    waiting.tokens = tokens = CountedTokens(waiting.tokens)
    scheduler.add(first)
    while not first.is_decoding:
        run_pass(scheduler, scheduler.schedule())
    scheduler.add(waiting)
    run_pass(scheduler, scheduler.schedule())
    looked_up_once = tokens.num_read

    for _ in range(200):
        run_pass(scheduler, scheduler.schedule())

    assert scheduler.waiting[0] is waiting
    assert looked_up_once <= 4200
    assert tokens.num_read - looked_up_once <= 200 * BLOCK


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_repeated_prefix_lookup_finds_the_same_blocks_as_a_first_lookup(data: st.DataObject) -> None:
    pool, tokens, found = SlotPool(20 * BLOCK), [3] * 9 * BLOCK, list[Block]()
    held: list[list[Block]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["text", "release", "evict", "forget"])):
            case "text" if pool.num_available >= 9 * BLOCK:
                blocks = pool.match(None, tokens)
                pool.hold(blocks)
                for start in range(BLOCK * len(blocks), BLOCK * data.draw(st.integers(1, 8)), BLOCK):
                    before = blocks[-1] if blocks else None
                    own = tuple(pool.allocate(BLOCK))
                    blocks.append(pool.register(before, tuple(tokens[start : start + BLOCK]), own))
                held.append(blocks)
            case "release" if held:
                pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
            case "evict":
                pool.free(pool.allocate(data.draw(st.integers(0, pool.num_available))))
            case "forget":
                pool.forget_prefixes()
        found = pool.match(None, tokens, found)
        assert found == pool.match(None, tokens)
        num_idle = sum(block.num_users == 0 for block in found)
        assert pool.num_available_after_holding(found) == pool.num_available - BLOCK * num_idle
    for blocks in held:
        pool.release(blocks)
    pool.forget_prefixes()
    assert sorted(pool._free) == list(range(20 * BLOCK))


def passes_until_decoding(scheduler: Scheduler, sequence: Sequence) -> int:
    num_passes = 0
    while not sequence.is_decoding:
        run_pass(scheduler, scheduler.schedule())
        num_passes += 1
        assert num_passes < 1000
    return num_passes


def test_a_short_prompt_does_not_wait_for_long_prompts_before_it() -> None:
    scheduler = Scheduler(140_000, max_batch_size=16, prefill_chunk=256, prefill_rows=512)
    for index in range(4):
        scheduler.add(make_sequence(f"long{index}", [index] * 32_768))
    run_pass(scheduler, scheduler.schedule())
    short = make_sequence("short", [9] * 50)
    scheduler.add(short)

    assert passes_until_decoding(scheduler, short) <= 3  # five prompts take turns, two in each pass


def test_short_prompts_that_keep_arriving_do_not_stop_a_long_prompt() -> None:
    scheduler = Scheduler(40_000, max_batch_size=8, prefill_chunk=256, prefill_rows=512)
    long = make_sequence("long", [1] * 8192)
    scheduler.add(long)
    num_passes = 0
    while not long.is_decoding:
        while len(scheduler.waiting) < 4:
            scheduler.add(
                make_sequence(f"short{num_passes}.{len(scheduler.waiting)}", [num_passes % 7] * 250, max_tokens=1)
            )
        run_pass(scheduler, scheduler.schedule())
        num_passes += 1
        assert num_passes <= 4 * 32  # 32 chunks, of which one is read in at most every fourth pass


def test_a_sequence_that_is_preempted_or_removed_while_its_prompt_is_read_loses_its_turn() -> None:
    scheduler = Scheduler(4000, max_batch_size=4, prefill_chunk=256, prefill_rows=512)
    sequences = [make_sequence(f"s{index}", [index] * 900) for index in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    run_pass(scheduler, scheduler.schedule())
    assert scheduler.preempt_latest() is sequences[2]
    scheduler.remove(sequences[0])

    plan = scheduler.schedule()

    assert sorted(sequence.request.request_id for sequence, _ in plan.prefills) == ["s1", "s2"]


def test_a_resumed_sequence_decodes_after_a_chunk_that_ends_before_its_last_token() -> None:
    scheduler = make_scheduler(200, prefill_chunk=32)
    sequence = make_sequence("s", [1] * 20)
    scheduler.add(sequence)
    while len(sequence.tokens) < 33:
        run_pass(scheduler, scheduler.schedule())
    scheduler.preempt_latest()
    scheduler.pool.forget_prefixes()
    run_pass(scheduler, scheduler.schedule())  # reads the first 32 tokens
    assert sequence.is_decoding

    plan = scheduler.schedule()

    assert (plan.prefills, plan.decoding) == ((), (sequence,))
