"""Every promise in docs/reliability.md names a test, and all these tests exist."""

import ast
import re

from tests.named_tests import NAMED, missing_tests
from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    assert len(NAMED.findall(PAGE)) > 50
    assert missing_tests(PAGE) == []


def test_every_promise_names_a_test() -> None:
    # A row without its own test says that its tests are those "of R1".
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [REUSW]\d+ \|", line)]
    assert [row[:6] for row in rows if not NAMED.search(row) and "of R1" not in row] == []


def test_promises_that_are_tested_with_pretended_engines_only_have_the_mark_of_promises_without_a_model() -> None:
    pretended = ("tests/workers/supervisor/", "tests/control/serving/")
    concerns_no_model = {"E8"}  # the gateway refuses the request
    unmarked = []
    for row in PAGE.splitlines():
        named = [path for path, _ in NAMED.findall(row)]
        if re.match(r"\| [RE]\d+ \|", row) and named and all(path.startswith(pretended) for path in named):
            name = row.split("|")[1].strip()
            if "(*without a model*)" not in row and "*wide*" not in row and name not in concerns_no_model:
                unmarked.append(name)
    assert unmarked == []


def test_tests_marked_wide_run_with_a_real_child_or_engine() -> None:
    marked = re.findall(r"`(tests/[\w/]+\.py)::(\w+)` \([^)]*\*wide\*", PAGE)
    assert len(marked) > 8
    for path, name in marked:
        functions = [node for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
                     if isinstance(node, ast.FunctionDef) and node.name == name]  # fmt: skip
        fixtures = {argument.arg for function in functions for argument in function.args.args}
        assert fixtures & {"each_child", "each_deployment", "real_deployment"}, f"{path}::{name}"
