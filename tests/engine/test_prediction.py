"""Predicted answers are drafted, change no answer with any drafter, and are counted as accepted or rejected tokens."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.load import load_model
from engine.models.base import Model
from engine.prediction import PredictionFollower
from engine.request import Completion, Request
from tests.engine.drafters import every_drafter
from tests.engine.test_equality import SAMPLINGS, answers_only, complete, make_requests
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def predicted(requests: list[Request], plain: list[Completion]) -> list[Request]:
    """Returns the requests with predictions.

    Four kinds alternate: the exact answer, the answer with a replaced and a missing part, the answer to another
    request, and no prediction.
    """
    answers = [completion.token_ids for completion in plain]
    edited = [(*answer[:9], 5, 6, *answer[11:17], *answer[20:]) for answer in answers]
    kinds = (answers, edited, [*answers[1:], answers[0]], [()] * len(answers))
    predictions = [kinds[i % 4][i] for i in range(len(answers))]
    return [replace(r, prediction_token_ids=tuple(p)) for r, p in zip(requests, predictions, strict=True)]


@pytest.mark.parametrize("sampling", ["greedy", "T=0.8", "all filters"])
def test_answers_are_equal_with_and_without_a_prediction_with_every_drafter(
    model: Model, tmp_path: Path, sampling: str
) -> None:
    requests = make_requests(model, SAMPLINGS[sampling], count=8, max_tokens=30)
    plain = complete(model, NoDrafter(), requests, max_batch_size=5)
    tokens_of = {c.request_id: c.token_ids for c in plain}
    draft_model = load_model(make_tiny_model(tmp_path, "llama", seed=1, num_layers=1))
    for drafter in [NoDrafter(), *every_drafter(model, draft_model, tokens_of)]:
        drafted = complete(model, drafter, predicted(requests, plain), max_batch_size=5, draft_budget=7)
        assert answers_only(drafted) == answers_only(plain), drafter.name


def test_an_exact_prediction_saves_most_passes_and_an_edited_prediction_many(
    model: Model,
) -> None:
    requests = make_requests(model, SAMPLINGS["T=0.8"] | {"ignore_eos": True}, count=2, max_tokens=60)
    plain = complete(model, NoDrafter(), requests)

    exact, edited = complete(model, NoDrafter(), predicted(requests, plain))

    # The drafted chains have 4, 5, 10, 16 and 16 tokens; the target adds one token after each chain.
    assert exact.speculation.num_spec_steps <= 7
    assert exact.speculation.num_accepted_draft_tokens >= 52
    assert edited.speculation.num_spec_steps <= 20
    assert [exact.token_ids, edited.token_ids] == [completion.token_ids for completion in plain]


def test_the_drafter_proposes_drafts_while_the_answer_differs_from_the_prediction(model: Model) -> None:
    (request,) = make_requests(model, SAMPLINGS["greedy"] | {"ignore_eos": True}, count=1, max_tokens=60)
    (plain,) = complete(model, NoDrafter(), [request])
    wrong = replace(request, prompt_token_ids=request.prompt_token_ids + plain.token_ids[:40] * 2)
    wrong = replace(wrong, prediction_token_ids=(1,) * 50)

    (with_prediction,) = complete(model, NgramDrafter(), [wrong], draft_budget=7)
    (without,) = complete(model, NgramDrafter(), [replace(wrong, prediction_token_ids=())], draft_budget=7)

    assert with_prediction.token_ids == without.token_ids
    assert with_prediction.speculation.num_draft_tokens >= without.speculation.num_draft_tokens > 0


def follow(prediction: list[int], answer: list[int]) -> tuple[int, list[int]]:
    """Returns the number of accepted tokens, and for each position whether the next token was drafted."""
    follower = PredictionFollower(prediction)
    drafted = []
    for token in answer:
        drafted.append(int(list(follower.upcoming(1)) == [token]))
        follower.accept(token)
    assert follower.num_accepted + follower.num_rejected == len(prediction)
    return follower.num_accepted, drafted


@pytest.mark.parametrize(
    ("prediction", "answer", "accepted", "drafted"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 4, [1, 1, 1, 1]),
        ([1, 2, 3, 4, 5], [1, 9, 3, 4, 5], 4, [1, 0, 0, 0, 1]),  # replaced
        ([1, 2, 3, 4, 5], [1, 9, 9, 2, 3, 4], 4, [1, 0, 0, 0, 0, 1]),  # inserted
        ([1, 2, 3, 4, 5, 6], [1, 4, 5, 6], 4, [1, 0, 0, 1]),  # deleted
        ([1, 2, 3], [1, 2, 3, 1, 2, 3], 3, [1, 1, 1, 0, 0, 0]),  # each predicted token counts once
        ([7, 8, 1, 7, 8, 2], [7, 8, 1, 9, 7, 8, 2], 6, [1, 1, 1, 0, 0, 0, 1]),  # continues at the nearest later match
        ([1, 2, 3], [4, 5, 6], 0, [0, 0, 0]),
    ],
)
def test_a_prediction_is_followed_again_after_a_difference(
    prediction: list[int], answer: list[int], accepted: int, drafted: list[int]
) -> None:
    assert follow(prediction, answer) == (accepted, drafted)


def test_a_long_prediction_of_one_repeated_token_is_followed_after_another_token() -> None:
    follower = PredictionFollower([1] * 100_000)
    for token in [2, *[1] * 100_000]:
        follower.accept(token)

    assert follower.num_accepted == 100_000


def test_drafts_grow_with_the_agreement_and_shrink_after_a_difference() -> None:
    prediction = list(range(100))
    follower = PredictionFollower(prediction)
    lengths = []
    for token in [*range(20), 500, *range(30, 50)]:
        lengths.append(len(follower.upcoming(16)))
        follower.accept(token)

    assert lengths[:5] == [4, 4, 4, 4, 4]
    assert lengths[19] == 16
    assert lengths[21:24] == [0, 0, 4]
    assert all(later - earlier <= 1 for earlier, later in pairwise(lengths[23:]))
