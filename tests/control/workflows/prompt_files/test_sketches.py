"""Sketches find exact and near duplicates, and treat the two prompts of a pair alike."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.workflows.prompt_files.sketches import Sketches, prompt_key, twins_across, twins_within

WORDS = [f"word{number}" for number in range(300)]
PROMPTS = st.lists(st.sampled_from(WORDS[:4]), max_size=6).map(" ".join)


def chat(*contents: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for content in contents]}


def sketches_of(*bodies: dict[str, Any]) -> Sketches:
    sketches = Sketches()
    for number, body in enumerate(bodies, start=1):
        sketches.add(number, body)
    return sketches


def text(seed: int, num_words: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def test_prompts_that_differ_in_white_space_or_in_the_form_of_their_text_are_exact_duplicates() -> None:
    forms = [chat("two  words\n"), chat([{"type": "text", "text": " two words"}]), {**chat("two words"), "seed": 3}]
    assert len({prompt_key(body) for body in forms}) == 1
    others = [chat("Two words"), chat("two words", "two"), {**chat("two words"), "tools": []}, {"prompt": "two words"}]
    assert len({prompt_key(body) for body in [forms[0], *others]}) == 5


def test_a_prompt_with_one_changed_word_is_a_near_duplicate_and_another_text_is_not() -> None:
    changed = text(1).replace(WORDS[random.Random(1).choices(range(300), k=200)[100]], "other", 1)
    assert changed != text(1)
    exact, near = twins_within(sketches_of(chat(text(1)), chat(text(2)), chat(changed), chat(text(2))))
    assert (exact, near) == ({3: 1}, {2: 0})


def test_long_system_messages_do_not_make_requests_similar_but_count_for_exact_duplicates() -> None:
    def request(system: str, question: str) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}

    sketches = sketches_of(
        request(text(1), "What is a lake?"), request(text(1), "Who wrote this book?"), request("x", "What is a lake?")
    )
    assert twins_within(sketches) == ({}, {2: 0})


@pytest.mark.parametrize(
    "pair", [("12 + 7 = ?", "12 * 7 = ?"), ("What is 2 + 2?", "What is 2 + 3?"), ("你好吗你好吗你", "你好吗你坏吗你")]
)
def test_short_prompts_that_differ_in_a_sign_are_not_near_duplicates(pair: tuple[str, str]) -> None:
    assert twins_within(sketches_of(*map(chat, pair))) == ({}, {})


def test_long_prompts_are_compared_at_their_beginning_and_end_and_in_between() -> None:
    """Only a part of a long prompt differs, such as a document between instructions that are always the same."""
    long = "a b c d e f " * 10_000
    assert twins_within(sketches_of(chat(text(1) + long), chat(text(2) + long)))[1] == {}
    assert twins_within(sketches_of(chat(long + text(1)), chat(long + text(2))))[1] == {}
    instructions = text(3, 1500)
    documents = [instructions + text(number, 6000) + instructions for number in (1, 2)]
    assert twins_within(sketches_of(*map(chat, documents)))[1] == {}
    again = documents[0].replace("instructions", "other", 1) + " end"
    assert twins_within(sketches_of(chat(documents[0]), chat(again)))[1] == {1: 0}


def test_prompts_without_words_are_not_near_duplicates() -> None:
    def image(url: str) -> dict[str, Any]:
        return chat([{"type": "image_url", "image_url": {"url": url}}])

    assert twins_within(sketches_of(image("a"), image("b"), image("a"), chat(""), chat(" \u200b"))) == ({2: 0}, {})


def test_unicode_forms_and_invisible_characters_hide_no_duplicate() -> None:
    composed, decomposed = "un caf\u00e9 noir, un caf\u00e9 blanc", "un cafe\u0301 noir, un cafe\u0301 blanc"
    assert twins_within(sketches_of(chat(composed), chat(decomposed))) == ({1: 0}, {})
    assert twins_within(sketches_of(chat(composed), chat(composed.replace("un", "u\u200bn")))) == ({}, {1: 0})


@pytest.mark.parametrize("message", [{"role": ["user"], "content": "x"}, {"role": {}, "content": "\ud800 and more"}])
def test_a_message_that_the_batch_will_refuse_is_sketched_without_an_error(message: dict[str, Any]) -> None:
    assert len(sketches_of({"messages": [message]})) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(PROMPTS, max_size=5), st.lists(PROMPTS, max_size=5))
def test_duplicates_across_files_and_within_a_file_agree_with_comparisons_of_each_single_prompt(
    ours: list[str], theirs: list[str]
) -> None:
    left, right = sketches_of(*map(chat, ours)), sketches_of(*map(chat, theirs))

    def partners(one: str, many: list[str]) -> tuple[bool, bool]:
        exact, near = twins_across(sketches_of(chat(one)), sketches_of(*map(chat, many)))
        return bool(exact), bool(near)

    exact, near = twins_across(left, right)
    assert set(exact) == {n for n, one in enumerate(ours) if partners(one, theirs)[0]}
    assert set(near) == {n for n, one in enumerate(ours) if partners(one, theirs) == (False, True)}
    for position, other in {**exact, **near}.items():  # symmetric: the partner finds the prompt
        assert any(partners(theirs[other], [ours[position]]))
    exact_within, near_within = twins_within(sketches_of(*map(chat, ours)))
    for position, earlier in {**exact_within, **near_within}.items():
        assert earlier < position
        assert any(partners(ours[position], [ours[earlier]]))
    assert all(
        any(partners(one, ours[:position])) == (position in exact_within or position in near_within)
        for position, one in enumerate(ours)
    )


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda v: st.lists(v, max_size=3)), st.data())
def test_malformed_bodies_are_sketched_without_an_error(value: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["messages", "prompt", "tools"]))
    body = {name: value, **data.draw(st.sampled_from([{}, chat("a")]))}
    assert len(sketches_of(body, {"messages": [{"content": value}]})) == 2
