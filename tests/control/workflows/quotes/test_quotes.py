"""Quotes estimate the cost of a batch before it runs, from earlier usage or from a pilot.

A pilot is a small batch with a sample of the rows. It measures how many tokens the model generates for a row.
"""

import json
from typing import Any

import pytest
from django.test import Client

from control.billing.usage.services import Tokens, price_remove, price_set
from control.core.storage.backends import get_storage
from control.core.storage.staging import staged_writer
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.workflows.batches.models import Batch
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import dataset_create
from control.workflows.quotes.models import Quote
from control.workflows.quotes.pilot import PILOT_ROWS, mean_with_bounds
from control.workflows.quotes.services import MIN_REQUESTS
from tests.control.factories import add_usage, chat_row, make_base_model, make_file

NUM_ROWS = 100
INPUT_TOKENS = 5_000


@pytest.fixture
def model(db: None) -> BaseModel:
    price_set(base_model_id="", input_nanousd=1000, output_nanousd=4000, batch_percent=50)
    return make_base_model("m")


def make_dataset(organization: Organization, model: BaseModel | None, **values: Any) -> Dataset:
    file = make_file(organization, [chat_row(f"row-{number}") for number in range(NUM_ROWS)])
    dataset = dataset_create(organization=organization, file=file, base_model=model)
    Dataset.objects.filter(pk=dataset.pk).update(**{"num_tokens": INPUT_TOKENS, **values})
    return dataset


def create_quote(client: Client, dataset: Dataset, *, status: int = 201, **body: Any) -> Any:
    response = client.post("/v1/quotes", {"dataset_id": dataset.pk, **body}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def end_pilot(quote: Any, lengths: list[int]) -> None:
    """Completes the pilot as a worker does, with one answer for each length in tokens."""
    lines = [json.dumps({"custom_id": str(n), "completion_token_ids": [0] * n}) + "\n" for n in lengths]
    key = f"pilot/{quote['id']}.jsonl"
    with staged_writer() as writer:
        writer.write("".join(lines).encode())
        get_storage().put_file(key, writer.finish().path)
    values = {"status": Batch.Status.COMPLETED, "tokens_key": key if lengths else ""}
    Batch.objects.filter(pk=quote["pilot_batch_id"]).update(**values)


def test_a_pilot_samples_rows_from_the_whole_file(client: Client, organization: Organization, model: BaseModel) -> None:
    quote = create_quote(client, make_dataset(organization, model))

    assert (quote["status"], quote["cost"]) == ("measuring", None)
    batch = Batch.objects.select_related("input_file").get(pk=quote["pilot_batch_id"])
    with get_storage().open(batch.input_file.storage_key) as source:
        rows = [json.loads(line) for line in source.read().splitlines()]
    assert 1 < len(rows) <= PILOT_ROWS
    numbers = [int(row["custom_id"].removeprefix("row-")) for row in rows]
    assert numbers[0] == 1  # the pilot names each row after its line number
    assert numbers[-1] > NUM_ROWS * 0.8
    assert batch.metadata == {"quote": quote["id"]}


def test_a_quote_extrapolates_the_pilots_answers_to_all_rows(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    quote = create_quote(client, make_dataset(organization, model))
    end_pilot(quote, [10, 20, 30])

    ready = client.get(f"/v1/quotes/{quote['id']}").json()

    # The lengths have the mean 20 and the standard deviation 10. The bounds are two standard errors from the mean.
    assert (ready["status"], ready["output_tokens"]) == ("ready", 20 * NUM_ROWS)
    assert ready["output_tokens_low"] == round((20 - 2 * 10 / 3**0.5) * NUM_ROWS)
    assert ready["output_tokens_high"] == round((20 + 2 * 10 / 3**0.5) * NUM_ROWS)
    # A batch costs half of the price: 500 nanodollars per input token and 2000 per output token.
    assert ready["cost"] == {"value": (INPUT_TOKENS * 500 + 20 * NUM_ROWS * 2000) / 1e9, "currency": "usd"}
    assert ready["cost_low"]["value"] < ready["cost"]["value"] < ready["cost_high"]["value"]


def test_a_later_price_does_not_change_a_quote(client: Client, organization: Organization, model: BaseModel) -> None:
    quote = create_quote(client, make_dataset(organization, model))
    end_pilot(quote, [20])
    price_set(base_model_id="", input_nanousd=9, output_nanousd=9)

    assert client.get(f"/v1/quotes/{quote['id']}").json()["cost"]["value"] == 0.0065  # computed with the old price


def test_once_there_is_a_price_no_quote_is_made_for_a_model_without_one(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    dataset = make_dataset(organization, make_base_model("unpriced"))
    price_remove(model="")
    price_set(base_model_id=model.pk, input_nanousd=1, output_nanousd=1)

    assert create_quote(client, dataset, status=403)["error"]["code"] == "model_not_priced"


def test_a_quote_uses_the_price_of_its_base_model(client: Client, organization: Organization, model: BaseModel) -> None:
    price_set(base_model_id=model.pk, input_nanousd=7, output_nanousd=7, batch_percent=100)

    quote = create_quote(client, make_dataset(organization, model))

    assert Quote.objects.get(pk=quote["id"]).input_nanousd == 7 * INPUT_TOKENS


def test_a_quote_fails_if_its_pilot_has_no_answers(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    quote = create_quote(client, make_dataset(organization, model))
    end_pilot(quote, [])

    assert client.get(f"/v1/quotes/{quote['id']}").json()["status"] == "failed"


def test_a_quote_from_history_needs_enough_requests_of_its_own_organization(
    client: Client, organization: Organization, other_organization: Organization, model: BaseModel
) -> None:
    dataset = make_dataset(organization, model)

    def record_usage(owner: Organization, num_requests: int) -> None:
        caller = Caller(organization_id=owner.pk)
        tokens = Tokens(output=7 * num_requests)
        values = {"model": model.name, "base_model_id": model.pk, "num_requests": num_requests}
        add_usage(caller, tokens=tokens, is_batch=True, **values)

    record_usage(other_organization, 1000)
    record_usage(organization, MIN_REQUESTS - 1)
    assert create_quote(client, dataset, basis="history", status=409)["error"]["code"] == "no_history"

    record_usage(organization, 1)
    quote = create_quote(client, dataset, basis="history")
    assert (quote["status"], quote["pilot_batch_id"]) == ("ready", None)
    assert (quote["output_tokens"], quote["output_tokens_low"]) == (7 * NUM_ROWS, None)
    assert client.get("/v1/quotes").json()["data"] == [quote]


@pytest.mark.parametrize("values", [{"num_tokens": None}, {"status": "invalid"}, {"num_rows": 0}, {"base_model": None}])
def test_a_dataset_without_counted_tokens_cannot_be_quoted(
    client: Client, organization: Organization, model: BaseModel, values: dict[str, Any]
) -> None:
    refused = create_quote(client, make_dataset(organization, model, **values), status=409)

    assert refused["error"]["code"] == "dataset_not_quotable"
    assert not Quote.objects.exists()
    assert not Batch.objects.exists()
    assert File.objects.count() == 1


@pytest.mark.parametrize(("lengths", "expected"), [([5], (5, 5, 5)), ([4, 4, 4], (4, 4, 4)), ([0, 100], (50, 0, 150))])
def test_bounds_are_two_standard_errors_to_each_side_and_never_negative(
    lengths: list[int], expected: tuple[float, ...]
) -> None:
    assert mean_with_bounds(lengths) == pytest.approx(expected)
