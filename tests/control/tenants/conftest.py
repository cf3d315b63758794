from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.databases import UNAVAILABLE, connected_to, fresh_postgres
from tests.postgres import is_available
from tests.workers.supervisor.conftest import stack as stack


@pytest.fixture
def postgres(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Connects this process to an empty PostgreSQL database with the application's role. Yields its URL."""
    if not is_available():
        pytest.skip(UNAVAILABLE)
    with fresh_postgres() as url, connected_to(url), django_db_blocker.unblock():
        yield url
