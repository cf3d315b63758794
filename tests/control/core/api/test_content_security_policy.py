"""HTML pages forbid inline scripts and other origins.

tests/control/operations/console/test_browser.py tests in a browser that the policy is enforced.
"""

import pytest
from django.test import Client


@pytest.mark.django_db
def test_html_pages_have_a_content_security_policy_without_inline_scripts() -> None:
    policy = Client().get("/admin/login/").headers["Content-Security-Policy"]

    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    assert directives["default-src"] == directives["form-action"] == "'self'"
    assert "'unsafe-inline'" not in directives["script-src"]
    assert directives["object-src"] == directives["frame-ancestors"] == "'none'"


@pytest.mark.django_db
def test_json_responses_have_no_content_security_policy() -> None:
    assert "Content-Security-Policy" not in Client().get("/v1/models").headers
