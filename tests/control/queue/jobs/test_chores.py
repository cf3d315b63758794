"""A recurring task (chore) is run by one of several workers each time it is due."""

from datetime import timedelta

import pytest
from django.db.models import F

from control.queue.jobs.chores import chores_claim
from control.queue.jobs.models import Chore

pytestmark = pytest.mark.django_db

CADENCES = {"often": 5.0, "rarely": 300.0}


def let_pass(seconds: float) -> None:
    Chore.objects.update(due_at=F("due_at") - timedelta(seconds=seconds))


def test_each_chore_is_run_by_one_of_many_workers_once_per_period() -> None:
    num_workers = 20
    first = [name for _ in range(num_workers) for name in chores_claim(CADENCES)]
    let_pass(5.0)
    second = [name for _ in range(num_workers) for name in chores_claim(CADENCES)]
    let_pass(295.0)
    third = [name for _ in range(num_workers) for name in chores_claim(CADENCES)]

    assert (first, second, third) == (["often", "rarely"], ["often"], ["often", "rarely"])


def test_a_worker_without_due_chores_asks_the_database_only_a_few_times(
    django_assert_max_num_queries: pytest.FixtureRequest,
) -> None:
    list(chores_claim(CADENCES))

    with django_assert_max_num_queries(2):  # type: ignore[operator]  # a context manager of pytest-django
        assert list(chores_claim(CADENCES)) == []


def test_chores_that_are_due_after_a_slow_chore_are_left_to_other_workers() -> None:
    slow_worker, other_worker = chores_claim(CADENCES), chores_claim(CADENCES)

    assert next(slow_worker) == "often"
    assert list(other_worker) == ["rarely"]
    assert list(slow_worker) == []
