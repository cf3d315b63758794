"""Usage and costs are returned in time buckets, as in OpenAI's API."""

import datetime as dt
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from openai.types.admin.organization import UsageCompletionsResponse, UsageCostsResponse

from control.billing.usage.models import UsageRecord
from control.billing.usage.services import Tokens, price_set
from control.queue.jobs.shards import ShardRows
from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller, current_caller
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_commit_shard
from tests.control import factories
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_key
from tests.control.queue.jobs.helpers import add_shards, claim

NOON = dt.datetime(2026, 3, 10, 12, 0, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
MINUTE = dt.timedelta(minutes=1)


def add_usage(organization: Organization, at: dt.datetime = NOON, **values: Any) -> None:
    caller = Caller(
        organization_id=organization.pk,
        api_key_id=values.pop("api_key_id", ""),
        project_id=values.pop("project_id", ""),
    )
    tokens = Tokens(input=values.pop("input", 0), output=values.pop("output", 0))
    factories.add_usage(caller, tokens=tokens, at=at, **values)


def unix(moment: dt.datetime) -> int:
    return int(moment.timestamp())


def get_usage(client: Client, query: str = "", *, start: dt.datetime = NOON, end: dt.datetime = NOON + DAY) -> Any:
    times = f"start_time={unix(start)}&end_time={unix(end)}"
    response = client.get(f"/v1/organization/usage/completions?{times}&{query}")
    assert response.status_code == 200, response.content
    UsageCompletionsResponse.model_validate(response.json(), strict=True)
    return response.json()


def results(page: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(result[name] for name in names) for bucket in page["data"] for result in bucket["results"]]


def test_usage_within_one_minute_is_summed(organization: Organization) -> None:
    for second in (0, 30, 59):
        add_usage(organization, NOON + dt.timedelta(seconds=second), input=10, output=1)
    add_usage(organization, NOON + MINUTE, input=1)

    rows = UsageRecord.objects.order_by("minute").values_list("minute", "input_tokens", "output_tokens", "requests")
    assert list(rows) == [(NOON, 30, 3, 3), (NOON + MINUTE, 1, 0, 1)]


# A page has 60 buckets of a minute by default. The 24 hours from noon to noon belong to two days.
@pytest.mark.parametrize(("width", "num_buckets", "index_with_usage"), [("1m", 60, 0), ("1h", 24, 0), ("1d", 2, 0)])
def test_buckets_without_usage_are_listed_too(
    client: Client, organization: Organization, width: str, num_buckets: int, index_with_usage: int
) -> None:
    add_usage(organization, NOON, input=5)

    page = get_usage(client, f"bucket_width={width}")

    assert len(page["data"]) == num_buckets
    assert [bool(bucket["results"]) for bucket in page["data"]].index(True) == index_with_usage
    borders = [(bucket["start_time"], bucket["end_time"]) for bucket in page["data"]]
    assert all(end == start for (_, end), (start, _) in pairwise(borders))


def test_usage_is_paged_to_the_end(client: Client, organization: Organization) -> None:
    for day in range(5):
        add_usage(organization, NOON + day * DAY, input=day)
    query, pages = "limit=2", []
    while True:
        page = get_usage(client, query, start=NOON, end=NOON + 4 * DAY + MINUTE)
        pages.append(results(page, "input_tokens"))
        if not page["has_more"]:
            break
        query = f"limit=2&page={page['next_page']}"

    assert pages == [[(0,), (1,)], [(2,), (3,)], [(4,)]]
    assert page["next_page"] is None


def test_usage_can_be_grouped_and_filtered(client: Client, organization: Organization) -> None:
    add_usage(organization, input=1, model="a", api_key_id="k1", project_id="p1")
    add_usage(organization, input=2, model="a", api_key_id="k2", is_batch=True)
    add_usage(organization, input=4, model="b", api_key_id="k1", project_id="p1")

    assert results(get_usage(client), "input_tokens", "model") == [(7, None)]
    assert results(get_usage(client, "group_by[]=model"), "model", "input_tokens") == [("a", 3), ("b", 4)]
    by_two = get_usage(client, "group_by=project_id&group_by=batch")
    assert results(by_two, "project_id", "batch", "input_tokens") == [(None, True, 2), ("p1", False, 5)]
    assert results(get_usage(client, "models[]=b&models[]=c"), "input_tokens") == [(4,)]
    assert results(get_usage(client, "api_key_ids=k2"), "input_tokens") == [(2,)]
    assert results(get_usage(client, "batch=false"), "input_tokens") == [(5,)]


def test_usage_of_another_organization_is_not_shown(client: Client, other_organization: Organization) -> None:
    add_usage(other_organization, input=9)

    assert results(get_usage(client), "input_tokens") == []
    total = client.get(f"/v1/usage?start_time={unix(NOON)}&end_time={unix(NOON + DAY)}").json()
    assert total["input_tokens"] == 0


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "start_time"),
        ("start_time=-1", "start_time"),
        ("start_time=1e9", "start_time"),
        ("start_time=99999999999999999999", "start_time"),
        ("start_time=0&limit=0", "limit"),
        ("start_time=0&limit=32", "limit"),
        ("start_time=0&bucket_width=1w", "bucket_width"),
        ("start_time=0&group_by=user_id", "group_by"),
        ("start_time=0&batch=yes", "batch"),
        ("start_time=9&page=8", "page"),
        ("start_time=0&" + "models=x&" * 101, "models"),
    ],
)
def test_an_invalid_query_is_refused(client: Client, query: str, param: str) -> None:
    response = client.get(f"/v1/organization/usage/completions?{query}")

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_costs_are_computed_with_the_prices_at_the_time_of_use(client: Client, organization: Organization) -> None:
    price_set(base_model_id="", input_nanousd=100, output_nanousd=400)
    add_usage(organization, input=1_000_000, output=500_000)
    price_set(base_model_id="", input_nanousd=999, output_nanousd=999)

    times = f"start_time={unix(NOON)}&end_time={unix(NOON + DAY)}"
    page = client.get(f"/v1/organization/costs?{times}").json()
    UsageCostsResponse.model_validate(page, strict=True)
    # 1,000,000 * 100 + 500,000 * 400 nanodollars
    assert results(page, "amount", "line_item") == [({"value": 0.3, "currency": "usd"}, None)]

    lines = client.get(f"/v1/organization/costs?{times}&group_by[]=line_item").json()
    UsageCostsResponse.model_validate(lines, strict=True)
    assert [
        (line, amount["value"], quantity)
        for line, amount, quantity in results(lines, "line_item", "amount", "quantity")
    ] == [
        ("m, input_tokens", 0.1, 1_000_000),
        ("m, output_tokens", 0.2, 500_000),
    ]
    total = client.get(f"/v1/usage?{times}").json()
    assert (total["output_tokens"], total["cost"]) == (500_000, {"value": 0.3, "currency": "usd"})


def test_a_model_can_have_its_own_price_and_batches_cost_half(organization: Organization) -> None:
    price_set(base_model_id="", input_nanousd=100, output_nanousd=100)
    price_set(base_model_id="bmodel_expensive", model="expensive", input_nanousd=1000, output_nanousd=1000)
    add_usage(organization, model="endpoint", base_model_id="bmodel_expensive", input=10)
    add_usage(organization, model="endpoint", base_model_id="bmodel_expensive", input=10, is_batch=True)
    add_usage(organization, model="other", base_model_id="bmodel_other", input=10)

    rows = UsageRecord.objects.order_by("model", "is_batch").values_list("input_nanousd", flat=True)
    assert list(rows) == [10_000, 5_000, 1_000]


def test_each_shard_of_a_batch_is_counted_once_for_the_batchs_key_and_project(organization: Organization) -> None:
    model = make_base_model("m")
    project = project_create(organization=organization, name="p")
    key, token = make_key(organization, project=project)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    with as_tenant(organization.pk, project.pk):
        file = make_file(organization, [chat_row()])
    body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h", "model": "m"}
    made = client.post("/v1/batches", body, content_type="application/json").json()
    batch = Batch.objects.select_related("base_model", "job").get(pk=made["id"])
    add_shards(batch.job, 2, 1)
    batch_claim = claim(batch.job)
    for shard_no, (completed, failed) in {0: (2, 0), 1: (0, 1)}.items():
        tokens = {"prompt_tokens": 10 * (completed + failed), "completion_tokens": 3 * completed}
        rows = ShardRows(completed=completed, failed=failed, usage=tokens)
        for _ in range(2):
            batch_commit_shard(batch=batch, claim=batch_claim, shard_no=shard_no, storage_key=f"{shard_no}", rows=rows)

    record = UsageRecord.objects.get()
    assert (record.model, record.is_batch, record.requests) == (model.name, True, 3)
    assert (record.input_tokens, record.output_tokens) == (30, 6)
    assert (record.api_key_id, record.project_id) == (key.pk, project.pk)


def test_the_current_caller_is_reset_after_each_request(organization: Organization) -> None:
    assert client_of(organization).get("/v1/models").status_code == 200
    assert current_caller() is None
    assert client_of(organization).get("/v1/files/none").status_code == 404
    assert current_caller() is None
    assert ApiKey.objects.count() == 2
