"""Promise S3 of docs/reliability.md: responses to unusual requests are as documented, and never have a status of 5xx.

A case is one request, generated from the OpenAPI document. Most cases then get ids of existing objects, because they
would otherwise end in a 404. The changes of each case are rolled back, so that all cases start from the same rows.
"""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import schemathesis
from django.conf import settings as django_settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from control.core.settings.config import get_config
from control.serving.gateway.wire import WIRES
from control.tenants.accounts.models import Organization
from tests.control.factories import make_key
from tests.control.world import World

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
CASES, SOAK_CASES = 2_000, 10_000
SHARE_WITH_EXISTING_IDS = 0.75  # the share of cases that name existing objects
# The keys are members of request bodies that name an object. The value is the parameter for which `World.id_of` returns
# the id of such an object. `Fuzzer` adds the parameter `counted_dataset_id`, because quotes need token counts.
REFERENCES = {
    "file_id": "file_id", "input_file_id": "file_id", "prompts_file": "file_id", "held_out_file": "file_id",
    "training_file": "file_id", "validation_file": "file_id", "model": "name", "dataset_id": "counted_dataset_id",
    "quote_id": "quote_id", "distillation_id": "distillation_id", "project_id": "project_id",
    "speculator_id": "speculator_id",
}  # fmt: skip


class Fuzzer:
    """Sends cases and checks their responses. `num_responses` counts the responses by status."""

    def __init__(self, organization: Organization) -> None:
        _, token = make_key(organization)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._world = World(organization)
        self._ids = {**self._world.ids_of_all_objects(), "counted_dataset_id": self._world.counted_dataset.pk}
        self._random = random.Random(0)
        self.num_responses: Counter[int] = Counter()

    def send(self, case: Case[Any]) -> None:
        """Sends the case, checks the response, and rolls back the changes.

        Raises: the errors of the checks, which show the request as a curl command.
        """
        if self._random.random() < SHARE_WITH_EXISTING_IDS:
            self._insert_existing_ids(case)
        with transaction.atomic():
            response = case.call(headers=self._headers)
            transaction.set_rollback(True)
        self.num_responses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS, headers=self._headers)

    def _insert_existing_ids(self, case: Case[Any]) -> None:
        is_fine_tuning = case.path.startswith("/v1/fine_tuning/")
        for name in case.path_parameters or ():
            case.path_parameters[name] = self._ids[f"fine_tuning_{name}" if is_fine_tuning else name]
        if isinstance(case.body, dict):
            for name in REFERENCES.keys() & case.body.keys():
                if isinstance(case.body[name], str):
                    case.body[name] = self._ids[REFERENCES[name]]


@pytest.fixture
def fuzzer(organization: Organization, one_connection: None, monkeypatch: pytest.MonkeyPatch) -> Fuzzer:
    monkeypatch.setattr(django_settings, "SLIPSTREAM", get_config().model_copy(update={"requests_per_minute": 0}))
    return Fuzzer(organization)


def operations() -> Iterator[APIOperation[Any, Any, Any, Any]]:
    schema = schemathesis.openapi.from_wsgi("/v1/openapi.json", _application)
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        yield result.ok()


def _application(environ: Any, start_response: Any) -> list[bytes]:
    """Calls the application, reads its response to the end and closes it, as a server does."""
    response = _wsgi()(environ, start_response)
    try:
        return [b"".join(response)]
    finally:
        response.close()


@cache
def _wsgi() -> WSGIHandler:
    """One handler for all requests, because its creation scans all static files."""
    return get_wsgi_application()


def cases_of(operation: APIOperation[Any, Any, Any, Any]) -> st.SearchStrategy[Case[Any]]:
    """Valid cases, and invalid ones if the operation has any input."""
    valid = operation.as_strategy(GenerationMode.POSITIVE)
    has_input = operation.body or operation.query or operation.path_parameters
    return valid | operation.as_strategy(GenerationMode.NEGATIVE) if has_input else valid


def fuzz(fuzzer: Fuzzer, num_cases: int, subtests: Any) -> None:
    all_operations = list(operations())
    cases_per_operation = -(-num_cases // len(all_operations))  # rounded up
    for operation in all_operations:

        @seed(0)
        @settings(
            max_examples=cases_per_operation, phases=[Phase.generate], database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=cases_of(operation))
        def run(case: Case[Any]) -> None:
            fuzzer.send(case)

        with subtests.test(operation.label):
            run()
    assert sum(fuzzer.num_responses.values()) >= num_cases * 0.9, (
        "more than a tenth of the requests is missing; only operations with few distinct cases may send fewer"
    )
    assert fuzzer.num_responses[200] + fuzzer.num_responses[201] > num_cases / 10, (
        "too few accepted requests: only refusals are tested"
    )


@pytest.mark.django_db
def test_the_generated_requests_include_all_routes_to_endpoints() -> None:
    assert {operation.path for operation in operations()} >= WIRES.keys()


@pytest.mark.timeout(900)  # the test took six minutes on a busy machine
def test_two_thousand_generated_requests_get_documented_responses(fuzzer: Fuzzer, subtests: Any) -> None:
    fuzz(fuzzer, CASES, subtests)


@pytest.mark.soak
def test_ten_thousand_generated_requests_get_documented_responses(fuzzer: Fuzzer, subtests: Any) -> None:
    fuzz(fuzzer, SOAK_CASES, subtests)
