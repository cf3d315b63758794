"""Helpers for tests of openings. An opening is the section at the top of an object's page in the console."""

import re

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.control.operations.console.support import change_path, page

MAX_QUERIES = 15


def opening(client: Client, model: str, pk: object) -> str:
    """Returns the HTML of an opening with single spaces, and checks the number of queries of the whole page."""
    with CaptureQueriesContext(connection) as queries:
        html = page(client, change_path(model, pk))
    assert len(queries) <= MAX_QUERIES, "\n".join(query["sql"][:160] for query in queries)
    found = re.search(r'<section class="console-opening.*?</section>', html, re.DOTALL)
    assert found is not None, "the page has no opening"
    return re.sub(r"\s+", " ", found[0])


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()
