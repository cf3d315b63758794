"""No query of a chore reads a large table from end to end, so the cost of a query does not grow with the accumulated
rows.

The database explains its plan for each query. PostgreSQL's plans depend on the contents of the tables, so the test adds
10,000 rows of ended objects to each large table. SQLite's plans do not depend on the contents.
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.utils import timezone

from control.data.files.models import File
from control.data.uploads.models import Upload, UploadPart
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import jobs_to_cancel
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.idempotency.models import IdempotencyKey
from control.workflows.batches.models import Batch
from control.workflows.batches.selectors import batches_overdue
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import make_base_model, make_organization
from workers.supervisor.worker import CHORES

Statement = tuple[str, Any]  # SQL and its parameters
NUM_ROWS = {"postgresql": 10_000, "sqlite": 100}[connection.vendor]
LARGE = (File, Upload, UploadPart, Job, CapturedRequest, Deployment, Rollout, Event, IdempotencyKey, Batch, Pipeline)
LARGE_TABLES = frozenset(model._meta.db_table for model in LARGE)
# These queries are not in CHORES, because the worker itself ends the jobs that the queries find.
QUERIES: dict[str, Callable[[], object]] = {
    "jobs to cancel": lambda: list(jobs_to_cancel()),
    "overdue batches": lambda: list(batches_overdue()),
}


def add_rows(make: Callable[[int], models.Model]) -> list[Any]:
    rows = [make(number) for number in range(NUM_ROWS)]
    return type(rows[0])._default_manager.bulk_create(rows, batch_size=500)


def populate() -> None:
    organization, model, now = make_organization(), make_base_model(), timezone.now()
    own = {"organization": organization}
    speculator = Speculator.objects.create(**own, base_model=model, name="s", kind="medusa", version=1)
    files = add_rows(lambda n: File(**own, filename="f", purpose="batch", size_bytes=1, storage_key=f"f{n}"))
    uploaded = {"filename": "f", "purpose": "batch", "size_bytes": 1, "expires_at": now, "has_parts": False}
    add_rows(lambda n: Upload(**own, **uploaded, status="completed"))
    upload = Upload.objects.create(**own, **{**uploaded, "expires_at": now + dt.timedelta(hours=1)})
    add_rows(lambda n: UploadPart(upload=upload, size_bytes=1, storage_key=f"p{n}"))
    jobs = add_rows(lambda n: Job(**own, kind=Job.Kind.BATCH, status="succeeded", finished_at=now))
    ended = {"status": "completed", "has_working_files": False, "expires_at": now, "endpoint": "/v1/completions"}
    add_rows(lambda n: Batch(**own, **ended, base_model=model, job=jobs[n], input_file=files[n], output_file=files[n]))
    done = {"base_model": model, "status": "succeeded"}
    add_rows(lambda n: Pipeline(**own, **done, name="p", prompts_file=files[n], held_out_file=files[n]))
    deployments = add_rows(lambda n: Deployment(**own, base_model=model, name=f"d{n}"))
    terms = {"share_percent": 1, "min_requests": 1, "max_acceptance_drop": 1, "max_error_rate": 1, "max_seconds": 1}
    canary = {"speculator": speculator, "previous": speculator, "status": "promoted"}
    add_rows(lambda n: Rollout(**own, **terms, **canary, deployment=deployments[n], canary=deployments[n]))
    Capture.objects.bulk_create([Capture(**own, deployment=deployment, hours=1) for deployment in deployments[:100]])
    add_rows(lambda n: CapturedRequest(**own, deployment=deployments[n % 100], endpoint="/v1/completions", sealed=b""))
    owners = Organization.objects.bulk_create([Organization(name=f"owner {n}") for n in range(100)])
    add_rows(lambda n: Event(organization=owners[n % 100], type="t", object_id=f"o{n}", seq=n + 1))
    key = {"fingerprint": "f", "locked_until": now, "created_at": now, "status": 200}
    add_rows(lambda n: IdempotencyKey(**own, **key, route="r", key=f"k{n}"))
    analyse()


def analyse() -> None:
    # in operation, PostgreSQL analyses its tables by itself, and nothing analyses SQLite's tables
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def partial_indexes() -> set[str]:
    """Returns the names of indexes over only some rows of their tables, which are cheap to read from end to end."""
    options = [model._meta for model in apps.get_models()]
    indexes = [index for option in options for index in (*option.indexes, *option.constraints)]
    return {index.name for index in indexes if getattr(index, "condition", None) is not None}


def record(statements: list[Statement], execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if re.match("SELECT|UPDATE|DELETE", sql):
        statements.append((sql, params))
    return execute(sql, params, many, context)


def whole_reads(sql: str, params: Any) -> list[str]:
    """Returns the steps of the query's plan that read a large table, or an index of all its rows, from end to end."""
    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN (FORMAT JSON) "
    with connection.cursor() as cursor:
        cursor.execute(explain + sql, params)  # SQLite's plan does not depend on the values of parameters
        rows = cursor.fetchall()
    if connection.vendor == "sqlite":
        return [row[3] for row in rows if is_whole_read_of_sqlite(row[3], sql)]
    (plan,) = rows[0]
    return [
        f"{node['Node Type']} {table_of(node)}"
        for node in nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
        if is_whole_read_of_postgres(node)
    ]


def is_whole_read_of_sqlite(step: str, sql: str) -> bool:
    """Returns whether a step of SQLite's plan reads a large table, or an index of all its rows, from end to end.

    step: for example "SCAN U0 USING INDEX batch_untidy" or "SEARCH jobs_job USING INDEX job_turn (status=?)".
    """
    aliases = {alias: table for table, alias in re.findall(r'"(\w+)" ([UTV]\d+)\b', sql)}
    read = re.match(r"SCAN (\w+)(?:.* INDEX (\w+))?", step)
    return read is not None and aliases.get(read[1], read[1]) in LARGE_TABLES and read[2] not in partial_indexes()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def table_of(node: dict[str, Any]) -> str:
    return str(node.get("Relation Name") or node.get("Index Name"))


def is_whole_read_of_postgres(node: dict[str, Any]) -> bool:
    if node["Node Type"] == "Seq Scan":
        return node["Relation Name"] in LARGE_TABLES
    reads_index = "Index" in node["Node Type"] and table_of(node) in LARGE_TABLES
    return reads_index and "Index Cond" not in node and node["Index Name"] not in partial_indexes()


@pytest.mark.django_db
def test_no_chore_reads_a_large_table_from_end_to_end() -> None:
    populate()
    found: dict[str, list[str]] = {}
    for name, run in {**{name: chore for name, (_, chore) in CHORES.items()}, **QUERIES}.items():
        statements: list[Statement] = []
        with connection.execute_wrapper(partial(record, statements)):
            run()
        assert statements, name
        steps = [f"{step} in {sql}" for sql, params in statements for step in whole_reads(sql, params)]
        if steps:
            found[name] = steps

    assert found == {}


@pytest.mark.django_db
def test_the_check_finds_a_query_without_an_index() -> None:
    own = {"organization": make_organization()}
    add_rows(lambda n: File(**own, filename="f", purpose="batch", size_bytes=1, storage_key=f"f{n}"))
    analyse()
    assert whole_reads(*File.objects.filter(size_bytes=7).query.sql_with_params())
    assert not whole_reads(*File.objects.filter(storage_key="f7").query.sql_with_params())
