"""Chores: recurring tasks of the whole installation. Each has its own interval, and one worker runs it each time.

A worker claims a due chore by moving its `due_at` to the next time, in one compare-and-swap. If the worker dies before
it has run the chore, the chore is run when it is due again.
"""

from collections.abc import Iterator, Mapping

from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.queue.jobs.models import Chore


def chores_claim(cadences: Mapping[str, float]) -> Iterator[str]:
    """Yields the names of due chores. Each is claimed just before it is yielded.

    While this worker runs a slow chore, other workers can thus claim the chores that follow.

    Args: cadences: seconds between two runs, by the chore's name.
    """
    known = set(Chore.objects.filter(pk__in=cadences).values_list("pk", flat=True))
    new = [Chore(name=name, due_at=from_now(-1)) for name in cadences if name not in known]
    Chore.objects.bulk_create(new, ignore_conflicts=True)  # another worker may create them at the same time
    due = set(Chore.objects.filter(pk__in=cadences, due_at__lte=Now()).values_list("pk", flat=True))
    yield from (name for name in cadences if name in due and _claim(name, cadences[name]))


def _claim(name: str, seconds: float) -> bool:
    return bool(Chore.objects.filter(pk=name, due_at__lte=Now()).update(due_at=from_now(seconds)))
