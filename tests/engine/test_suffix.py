"""Suffix decoding proposes only continuations that occurred before, and its survival estimates are accurate."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft import Draft
from engine.drafters.suffix import MAX_MEMORIES, SuffixDrafter
from engine.drafters.suffix_index import BREAK, CONTEXTS, SuffixIndex
from engine.request import Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence

few_tokens = st.integers(0, 3)  # a small alphabet, so that tokens repeat
texts = st.lists(few_tokens, min_size=1, max_size=120)


def make_sequence(
    name: str, prompt: list[int], answer: list[int], *, temperature: float = 0.0, memory: str | None = "project"
) -> Sequence:
    request = Request(name, tuple(prompt), SamplingParams(max_tokens=1000, temperature=temperature), memory=memory)
    return Sequence(request, prompt + answer, None, SpeculationStats())


def occurs(part: list[int], text: list[int]) -> bool:
    return any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


@settings(deadline=None)
@given(text=texts, context=st.lists(few_tokens, min_size=1, max_size=20), depth=st.integers(1, 9))
def test_matches_finds_the_longest_earlier_context_and_the_tokens_after_it(
    text: list[int], context: list[int], depth: int
) -> None:
    index = SuffixIndex(len(text))
    index.extend(text)

    matches = index.matches(context, depth)

    for match_length, continuation in matches:
        part = context[-match_length:] + list(continuation)
        assert occurs(part, text)
        assert len(continuation) == depth or text[-len(part) :] == part, "only the end of the text cuts a continuation"
    # A context that occurs only at the end of the text has no continuation, hence text[:-1].
    longest = max((n for n in CONTEXTS if n <= len(context) and occurs(context[-n:], text[:-1])), default=0)
    assert max((match_length for match_length, _ in matches), default=0) == longest


def test_a_full_index_finds_only_matches_in_the_latest_tokens() -> None:
    index = SuffixIndex(100)
    numbers = random.Random(0)
    text = [numbers.randrange(5) for _ in range(1000)]
    for start in range(0, len(text), 7):
        index.extend(text[start : start + 7])
        for match_length, continuation in index.matches(text[: start + 7][-20:], 10):
            recent = text[max(0, start + 7 - 128) : start + 7]  # 128: the capacity, rounded up to a power of two
            assert occurs(text[: start + 7][-match_length:] + list(continuation), recent)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.integers(1, 30), st.integers(1, 5))
def test_every_path_of_a_draft_occurred_earlier_after_the_last_token(
    requests: list[tuple[list[int], list[int]]], budget: int, step: int
) -> None:
    drafter = SuffixDrafter(past_tokens=600)
    past_texts: list[list[int]] = []
    for number, (prompt, answer) in enumerate(requests):
        sequence = make_sequence(f"{number}", prompt, [])
        for start in range(0, len(answer), step):
            sequence.tokens += answer[start : start + step]
            (draft,) = drafter.propose([sequence], budget)  # Draft validates its parents and survivals
            assert len(draft) <= budget
            paths = [[draft.tokens[node] for node in draft.path(node)] for node in range(len(draft))]
            assert len({tuple(path) for path in paths}) == len(paths), "a path occurs twice"
            for path in paths:
                assert any(occurs([sequence.tokens[-1], *path], text) for text in (*past_texts, sequence.tokens))
        drafter.forget(f"{number}")
        past_texts.append(sequence.tokens)


def test_past_answers_are_used_for_drafts_until_newer_answers_displace_them() -> None:
    drafter = SuffixDrafter(past_tokens=256)
    answer = list(range(100, 140))
    first = make_sequence("first", [1, 2, 3], answer)
    drafter.propose([first], 8)
    drafter.forget("first")

    (draft,) = drafter.propose([make_sequence("second", [7, 8], answer[:20])], 8)
    assert draft.tokens == tuple(answer[20:28]), "the draft is a chain, because only one continuation has occurred"
    drafter.forget_past()
    assert len(drafter.propose([make_sequence("later", [7, 8], answer[:20])], 8)[0]) == 0
    drafter.propose([first], 8)
    drafter.forget("first")

    for number in range(10):  # 10 answers of 40 tokens displace the first one from 256 tokens
        drafter.propose([make_sequence(f"{number}", [5], list(range(1000 * number, 1000 * number + 40)))], 8)
        drafter.forget(f"{number}")
    (draft,) = drafter.propose([make_sequence("third", [7, 8], answer[:20])], 8)
    assert len(draft) == 0


def finish(drafter: SuffixDrafter, name: str, answer: list[int], memory: str | None) -> None:
    """Runs a request with this answer to its end; the drafter drafts at every token and observes the acceptance."""
    answer_with_drafts(drafter, name, answer, memory)
    drafter.forget(name)


def answer_with_drafts(drafter: SuffixDrafter, name: str, answer: list[int], memory: str | None) -> list[Draft]:
    sequence, drafts = make_sequence(name, [5], [], memory=memory), []
    for token in answer:
        drafts += drafter.propose([sequence], 8)
        sequence.tokens.append(token)
    return drafts


@pytest.mark.parametrize(("of_others", "own"), [("a", "b"), ("a", None), (None, "b"), (None, None)])
def test_drafts_are_not_influenced_by_the_answers_of_another_project(of_others: str | None, own: str | None) -> None:
    """The answers of the other project contain the text to draft. Nevertheless, neither the drafted tokens nor their
    survival estimates change."""
    answer = [100, 101, 102, 103] * 8
    influenced, alone = SuffixDrafter(), SuffixDrafter()
    for number in range(10):
        finish(influenced, f"other-{number}", answer, of_others)

    drafts = answer_with_drafts(influenced, "mine", answer, own)

    assert drafts == answer_with_drafts(alone, "mine", answer, own)
    assert any(len(draft) for draft in drafts), "the answer repeats itself, so there is something to copy"


def test_a_request_without_a_memory_leaves_no_answer_to_its_own_project() -> None:
    drafter, answer = SuffixDrafter(), list(range(100, 140))
    finish(drafter, "private", answer, None)
    assert len(drafter.propose([make_sequence("later", [5], answer[:20], memory="a")], 8)[0]) == 0


def test_of_too_many_projects_the_least_recently_used_one_is_forgotten() -> None:
    drafter, answer = SuffixDrafter(past_tokens=256), list(range(100, 140))
    for number in range(MAX_MEMORIES):
        finish(drafter, f"{number}", answer, f"project-{number}")
    finish(drafter, "again", answer, "project-0")
    finish(drafter, "new", answer, "another project")

    def num_drafted(memory: str) -> int:
        (draft,) = drafter.propose([make_sequence(f"later-{memory}", [7], answer[:20], memory=memory)], 8)
        return len(draft)

    assert num_drafted("project-0") == 8
    assert num_drafted("project-1") == 0


def test_no_draft_continues_from_the_end_of_one_answer_into_the_next() -> None:
    drafter = SuffixDrafter()
    for name, answer in (("a", [10, 11, 12]), ("b", [20, 21, 22])):
        drafter.propose([make_sequence(name, [1], answer)], 8)
        drafter.forget(name)
    (draft,) = drafter.propose([make_sequence("c", [9], [10, 11])], 8)
    assert draft.tokens == (12,)
    assert BREAK not in draft.tokens


def test_a_preempted_request_gets_the_same_draft_as_before() -> None:
    drafter = SuffixDrafter()
    sequence = make_sequence("a", [4, 5, 6, 7], [4, 5])
    before = drafter.propose([sequence], 8)
    drafter.forget("a")
    (after,) = drafter.propose([sequence], 8)
    assert before[0].tokens[:2] == (6, 7)
    assert after.tokens[:2] == (6, 7)
    drafter.forget("a")
    drafter.forget("a")  # a second time, without effect


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_survival_estimates_add_up_to_the_number_of_accepted_tokens(temperature: float) -> None:
    """The text is random. After each pair of tokens, there are three possible tokens with different probabilities."""
    numbers = random.Random(1)
    drafter = SuffixDrafter()
    expected = accepted = 0.0
    for request in range(12):
        tokens = [numbers.randrange(20), numbers.randrange(20)]
        sequence = make_sequence(f"{request}", tokens, [0], temperature=temperature)
        for _ in range(150):
            a, b = sequence.tokens[-2:]
            successor = random.Random(20 * a + b).sample(range(20), 3)
            sequence.tokens.append(numbers.choices(successor, (6, 3, 1))[0])
            (draft,) = drafter.propose([sequence], 12)
            a, b = sequence.tokens[-2:]
            following = numbers.choices(random.Random(20 * a + b).sample(range(20), 3), (6, 3, 1))[0]
            if request >= 4:  # the first requests only provide observations
                root_nodes = [node for node in range(len(draft)) if draft.parents[node] == -1]
                expected += sum(draft.survival[node] for node in root_nodes)
                accepted += any(draft.tokens[node] == following for node in root_nodes)
            sequence.tokens.append(following)
        drafter.forget(f"{request}")
    assert expected == pytest.approx(accepted, rel=0.1)
