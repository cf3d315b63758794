from tests.clients.environments import CLIENTS
from tests.clients.script_docs import read_script
from tests.clients.table import PAGE, Result, table

CLIENT = CLIENTS[0]
CHECKS = list(read_script(CLIENT).checks)
PASSED = {(CLIENT.name, check): Result("passed") for check in CHECKS}


def row_of(results: dict[tuple[str, str], Result]) -> str:
    return next(line for line in table(results).splitlines() if line.startswith(f"| {CLIENT.name} "))


def test_the_row_of_a_client_whose_checks_all_passed_has_their_number() -> None:
    assert f"| all {len(CHECKS)} passed |" in row_of(PASSED)


def test_a_failed_check_is_named() -> None:
    failed = PASSED | {(CLIENT.name, CHECKS[0]): Result("failed")}

    assert f"| failed: {read_script(CLIENT).checks[CHECKS[0]]} |" in row_of(failed)


def test_the_row_of_a_client_that_was_not_run_has_the_reason() -> None:
    reason = "openai==3.54.0 cannot be installed here: No matching distribution"
    skipped = {(CLIENT.name, check): Result("skipped", reason) for check in CHECKS}

    assert f"| not run: {reason} |" in row_of(skipped)
    assert "| not run: " in row_of({})


def test_a_failed_check_is_named_beside_one_that_was_not_run() -> None:
    mixed = PASSED | {(CLIENT.name, CHECKS[0]): Result("failed"), (CLIENT.name, CHECKS[1]): Result("skipped", "why")}

    assert f"| failed: {read_script(CLIENT).checks[CHECKS[0]]}; not run: why |" in row_of(mixed)


def test_the_page_lists_each_client_with_its_pinned_version_and_its_present_checks() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    for client in CLIENTS:
        script = read_script(client)
        listed = [row for row in rows if row[0] == f"| {client.name} {client.version}"]
        assert [row[1] for row in listed] == ["; ".join(script.checks.values())], "run `make test-clients`"
