"""The reference page of the API at /docs loads only files of this server that the page's policy permits.

tests/control/operations/console/test_browser.py opens the page in a browser.
"""

from html.parser import HTMLParser

import pytest
from django.test import Client
from django.urls import reverse

from control.core.api.content_security_policy import policy
from tests.control.operations.console.support import operator_client, page

DOCUMENT_PATH = "/v1/openapi.json"
TYPES = {"script": "javascript", "stylesheet": "text/css", "icon": "image/png"}
DIRECTIVES = {"script": "script-src", "stylesheet": "style-src", "icon": "img-src"}


class Assets(HTMLParser):
    """Collects (kind, address) of what a page loads, and counts the page's inline scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.num_inline_scripts = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link":
            self.found.append((values["rel"], values["href"]))
        elif "src" in values:
            self.found.append((tag, values["src"]))
        elif tag == "script":
            self.num_inline_scripts += 1


@pytest.mark.django_db
def test_without_a_key_the_reference_page_and_all_that_it_loads_are_served_and_permitted_by_its_policy() -> None:
    response = Client().get("/docs")
    assets = Assets(response.content.decode())

    assert response.status_code == 200
    assert response.headers["Content-Security-Policy"] == policy()
    assert assets.num_inline_scripts == 0
    assert sorted(kind for kind, _ in assets.found) == ["icon", "script", "script", "script", "stylesheet"]
    directives = {words[0]: words[1:] for words in (part.split() for part in policy().split(";"))}
    for kind, address in assets.found:
        assert address.startswith(("/static/", "/docs?")), address
        assert "'self'" in directives[DIRECTIVES[kind]]
        loaded = Client().get(address)
        assert loaded.status_code == 200, address
        assert TYPES[kind] in loaded.headers["Content-Type"]
        assert b"".join(loaded), address


@pytest.mark.django_db
def test_the_script_of_the_reference_page_loads_the_document_from_here() -> None:
    script = Client().get("/docs?script=").content.decode()

    assert f'url: "{DOCUMENT_PATH}"' in script.replace("\\u002D", "-")
    assert "connect-src" not in policy(), "requests of the page are subject to default-src"
    assert "default-src 'self'" in policy()
    assert Client().get(DOCUMENT_PATH).status_code == 200


@pytest.mark.django_db
def test_the_console_links_to_the_reference_page() -> None:
    assert 'href="/docs"' in page(operator_client(), reverse("admin:index"))
