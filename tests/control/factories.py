"""Plain functions that make one database row each, with defaults for all values that do not matter to a test."""

import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.test import Client

from control.billing.usage.services import Tokens, usage_add
from control.data.files.models import File
from control.data.files.services import file_create
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.tenants.accounts.models import ApiKey, Organization, Project
from control.tenants.administration.services import api_key_create, organization_create
from control.tenants.authentication.caller import Caller

_number = itertools.count(1)


def make_organization(name: str | None = None) -> Organization:
    return organization_create(name=name or f"Organization {next(_number)}")


def make_key(organization: Organization | None = None, **values: Any) -> tuple[ApiKey, str]:
    return api_key_create(organization=organization or make_organization(), name="test", **values)


def client_of(organization: Organization, *, project: Project | None = None) -> Client:
    """Returns Django's test client with a key of the organization or project. An exception becomes status 500."""
    _, token = make_key(organization, project=project)
    return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})


def make_file(
    organization: Organization | None = None,
    content: bytes | str | Sequence[dict[str, Any]] = b'{"hello": "world"}\n',
    *,
    filename: str = "rows.jsonl",
    purpose: str = File.Purpose.BATCH,
) -> File:
    """Args: content: text, bytes or rows, which become one JSON object per line."""
    if not isinstance(content, (bytes, str)):
        content = "".join(f"{json.dumps(row)}\n" for row in content)
    data = content.encode() if isinstance(content, str) else content
    return file_create(
        organization=organization or make_organization(), filename=filename, purpose=purpose, source=io.BytesIO(data)
    )


def make_base_model(name: str | None = None, organization: Organization | None = None) -> BaseModel:
    """Makes only the database row; `tests.tiny_model` writes a folder with weights."""
    return BaseModel.objects.create(
        name=name or f"model-{next(_number)}",
        organization=organization,
        path=str(Path("/nonexistent/model")),
        model_type="llama",
        revision="0" * 64,
    )


def add_usage(caller: Caller, **values: Any) -> int:
    """Records usage of an endpoint, by default with a new sequence number. Returns: the cost in nanodollars."""
    defaults: dict[str, Any] = {"model": "m", "base_model_id": "", "tokens": Tokens(), "num_requests": 1}
    part = {"is_batch": False, "object_id": "object", "sequence": str(next(_number))}
    return usage_add(**{"caller": caller, **defaults, **part, **values})


def make_job(organization: Organization | None = None, *, kind: str = Job.Kind.TRAINING, **values: Any) -> Job:
    """Makes only the database row, without the event that `job_submit` writes."""
    return Job.objects.create(organization=organization or make_organization(), kind=kind, **values)


def chat_row(custom_id: str = "row-1", *, content: str = "2+2?", model: str = "", **body: Any) -> dict[str, Any]:
    """Returns one row of a batch input file."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": content}], **body},
    }
