"""Tests of the training data: reading answers, the split for validation, labels, and the draft vocabulary."""

import hashlib
from pathlib import Path

import pytest
import torch

from tests.workers.support import token_rows, write_lines
from workers.failures import InvalidInputError
from workers.training.data import (
    IGNORED,
    Conversation,
    depth_labels,
    most_frequent_tokens,
    read_corpus,
    split_by_hash,
    token_counts,
)


def conversation(custom_id: str, completion: tuple[int, ...] = (5, 6, 7)) -> Conversation:
    return Conversation(
        custom_id=custom_id, prompt_token_ids=(1,), completion_token_ids=completion, cut_by_length=False
    )


def test_the_labels_of_a_row_are_the_tokens_after_the_token_that_the_target_samples_there() -> None:
    labels = depth_labels(torch.tensor([10, 11, 12, 13]), num_depths=2)
    assert labels.tolist() == [[11, 12], [12, 13], [13, IGNORED], [IGNORED, IGNORED]]


def test_at_least_four_conversations_are_held_out_for_validation() -> None:
    for count, expected in ((8, 4), (40, 4), (41, 5), (200, 20)):
        train, validation = split_by_hash([conversation(f"row-{i}") for i in range(count)], fraction=0.1)
        assert (len(validation), len(train)) == (expected, count - expected)


def test_the_split_into_training_and_validation_does_not_depend_on_the_order_of_conversations() -> None:
    rows = [conversation(f"row-{i}") for i in range(50)]
    _, validation = split_by_hash(rows, fraction=0.1)
    _, reversed_validation = split_by_hash(rows[::-1], fraction=0.1)
    assert {c.custom_id for c in validation} == {c.custom_id for c in reversed_validation}


def test_conversations_with_equal_ids_are_all_in_training_or_all_in_validation() -> None:
    train, validation = split_by_hash([conversation(f"row-{i % 10}") for i in range(30)], fraction=0.1)
    assert not {c.custom_id for c in train} & {c.custom_id for c in validation}


def test_a_corpus_counts_cut_answers_and_leaves_out_answers_of_one_token(tmp_path: Path) -> None:
    rows = token_rows([[5, 6, 7]] * 10)  # their finish reason is "length"
    rows[0]["finish_reason"] = "stop"
    rows[1]["completion_token_ids"] = [5]
    path = write_lines(tmp_path / "tokens.jsonl", rows)
    corpus = read_corpus([path], validation_fraction=0.1)
    assert len(corpus.train) + len(corpus.validation) == 9
    assert (corpus.num_skipped, corpus.num_cut_by_length) == (1, 8)
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_cut_answers_are_counted_by_where_they_were_cut_and_dropped_with_drop_cut_answers(tmp_path: Path) -> None:
    rows = token_rows([[5, 6, 7]] * 14)  # their finish reason is "length"
    for row in rows[:9]:
        row["finish_reason"] = "stop"
    # The finish reason "stop" says that the first answer ended by itself after its continuation.
    rows[0]["cut"] = {"within": "trace", "continued": True}
    rows[9]["cut"] = rows[10]["cut"] = {"within": "trace", "continued": False}
    rows[11]["cut"] = {"within": "answer", "continued": True}
    path = write_lines(tmp_path / "tokens.jsonl", rows)

    kept = read_corpus([path], validation_fraction=0.1)
    dropped = read_corpus([path], validation_fraction=0.1, drop_cut_answers=True)

    assert (kept.num_cut_by_length, kept.num_cut_in_trace, kept.num_dropped) == (5, 2, 0)
    assert (dropped.num_cut_by_length, dropped.num_cut_in_trace, dropped.num_dropped) == (0, 0, 5)
    assert len(dropped.train) + len(dropped.validation) == 9
    path = write_lines(tmp_path / "short.jsonl", rows[2:])
    with pytest.raises(InvalidInputError, match="got 7, because on_truncation drops 5 that the length limit ended"):
        read_corpus([path], validation_fraction=0.1, drop_cut_answers=True)


def test_the_error_for_an_invalid_line_names_the_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tokens.jsonl", [*token_rows([[5, 6]] * 9), {"custom_id": "x"}])
    with pytest.raises(InvalidInputError, match=r"tokens\.jsonl:10: need custom_id"):
        read_corpus([path], validation_fraction=0.1)


def test_too_few_answers_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tokens.jsonl", token_rows([[5, 6, 7]] * 7))
    with pytest.raises(InvalidInputError, match="at least 8 answers of two tokens or more, got 7"):
        read_corpus([path], validation_fraction=0.1)


def test_the_draft_vocabulary_has_the_most_frequent_tokens_in_order_of_their_ids() -> None:
    counts = token_counts([(3, 3, 9, 9, 9, 4, 7)], vocab_size=12)
    assert most_frequent_tokens(counts, size=2).tolist() == [3, 9]
    # Tokens 4 and 7 are equally frequent, so the smaller id wins.
    assert most_frequent_tokens(counts, size=3).tolist() == [3, 4, 9]
    assert most_frequent_tokens(counts, size=100).tolist() == [3, 4, 7, 9]  # without tokens that do not occur


def test_end_tokens_are_in_the_draft_vocabulary_even_if_they_do_not_occur() -> None:
    counts = token_counts([(3, 3, 9)], vocab_size=12)
    assert most_frequent_tokens(counts, size=2, always=(2,)).tolist() == [2, 3]


def test_a_draft_vocabulary_is_filled_with_tokens_of_prompts_and_then_with_likely_tokens() -> None:
    answers, prompts = token_counts([(3, 3, 9)], vocab_size=12), token_counts([(9, 5, 7, 7)], vocab_size=12)
    mass = torch.tensor([0.0, 0.1, 0.4, 0, 0, 0, 0.3, 0, 0, 0, 0, 0])
    assert most_frequent_tokens(answers, size=4, fill=(prompts, mass)).tolist() == [3, 5, 7, 9]
    assert most_frequent_tokens(answers, size=6, fill=(prompts, mass)).tolist() == [2, 3, 5, 6, 7, 9]
    assert most_frequent_tokens(answers, size=12, fill=(prompts, mass)).tolist() == [1, 2, 3, 5, 6, 7, 9]
    assert most_frequent_tokens(answers, size=12, fill=(prompts,)).tolist() == [3, 5, 7, 9]
