"""The noises: the most disturbing things that one organization can do to others.

Each noise is an async context manager, which makes the noise while its `async with` block runs. A noise of several
requests yields a task that ends when the server has answered each of these requests once.
"""

import asyncio
import datetime as dt
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gateway.installation import MODEL
from benchmarks.gateway.load import Address
from benchmarks.gateway.server import helper, helper_lines
from benchmarks.neighbours.callers import TEMPLATE_MODEL

if TYPE_CHECKING:
    from control.tenants.accounts.models import Organization

NUM_STREAMS, NUM_RECEIVERS, NUM_EVENTS, NUM_STAGINGS, NUM_JOBS, NUM_FEEDS = 500, 200, 20, 8, 10_000, 200
INSERT_ROWS = 1_000
ENDLESS_TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}{% endfor %}"
_PACKAGE = "benchmarks.neighbours"

Cycle = asyncio.Task[str]


@dataclass(frozen=True, slots=True)
class Loud:
    """The organization that makes the noise."""

    address: Address
    folder: Path  # the installation's data folder

    @contextmanager
    def tenant(self) -> "Iterator[Organization]":
        from control.tenants.authentication.api_keys import key_of
        from control.tenants.row_security.scope import as_tenant

        organization = key_of(f"Bearer {self.address.token}").organization
        with as_tenant(organization.pk, None):
            yield organization


@asynccontextmanager
async def streams(loud: Loud) -> AsyncIterator[None]:
    async with helper("crowd", loud.address.port, loud.address.token, MODEL, NUM_STREAMS):
        yield


@asynccontextmanager
async def webhooks(loud: Loud) -> AsyncIterator[None]:
    """Makes webhook receivers that accept connections and never answer, each with many due deliveries."""

    def deliver(url: str) -> None:
        from django.db import transaction

        from control.tenants.events.services import event_record
        from control.tenants.webhooks.models import WebhookEndpoint
        from control.tenants.webhooks.services import endpoint_rotate_secret

        with loud.tenant() as organization, transaction.atomic():
            for _ in range(NUM_RECEIVERS):
                endpoint = WebhookEndpoint.objects.create(organization=organization, url=url, events=["*"])
                endpoint_rotate_secret(endpoint=endpoint, grace=dt.timedelta(0))  # creates a secret
            for number in range(NUM_EVENTS):
                event_record(
                    organization_id=organization.pk,
                    project_id=None,
                    type="batch.completed",
                    object_id=f"batch_{number}",
                )

    def delete() -> None:
        with loud.tenant() as organization:
            organization.webhook_endpoints.all().delete()

    with socket.create_server(("127.0.0.1", 0), backlog=4096) as receiver:
        await asyncio.to_thread(deliver, f"http://127.0.0.1:{receiver.getsockname()[1]}/")
        yield
        await asyncio.to_thread(delete)


@asynccontextmanager
async def stagings(loud: Loud) -> AsyncIterator[None]:
    """Makes endpoints whose speculators arrive slowly from storage."""

    def deploy() -> None:
        from control.models.catalog.models import BaseModel, Speculator
        from control.serving.deployments.services import deployment_create

        with loud.tenant() as organization:
            model = BaseModel.objects.get(name="pretended")
            for number in range(NUM_STAGINGS):
                speculator = Speculator.objects.create(
                    organization=organization,
                    base_model=model,
                    name=f"slow-{number}",
                    kind="medusa",
                    status=Speculator.Status.READY,
                    target_revision=model.revision,
                    storage_prefix=f"slow/{number}",
                )
                name = f"slow-{number}"
                deployment_create(organization=organization, name=name, base_model=model, speculator=speculator)

    def delete() -> None:
        with loud.tenant() as organization:
            organization.deployments.filter(name__startswith="slow-").delete()
            organization.speculators.all().delete()

    downloaded = loud.folder / "downloaded"
    downloaded.unlink(missing_ok=True)
    await asyncio.to_thread(deploy)
    yield
    await asyncio.to_thread(delete)
    downloaded.touch()  # ends the downloads from the slow storage (benchmarks/neighbours/supervisor.py)


@asynccontextmanager
async def jobs(loud: Loud) -> AsyncIterator[None]:
    def queue() -> None:
        from control.queue.jobs.fair import share_join
        from control.queue.jobs.models import Job

        with loud.tenant() as organization:
            share_join(organization.pk)
            queued = (Job(organization=organization, kind=Job.Kind.TRAINING) for _ in range(NUM_JOBS))
            Job.objects.bulk_create(queued, batch_size=INSERT_ROWS)

    def delete() -> None:
        from control.queue.jobs.models import Job

        with loud.tenant() as organization:
            Job.objects.filter(organization=organization).delete()

    await asyncio.to_thread(queue)
    yield
    await asyncio.to_thread(delete)


def calls(kind: str) -> Callable[[Loud], AbstractAsyncContextManager[Cycle]]:
    """Returns the noise of many callers, which send one kind of requests (benchmarks/neighbours/callers.py)."""

    @asynccontextmanager
    async def noise(loud: Loud) -> AsyncIterator[Cycle]:
        async with helper_lines("callers", kind, loud.address.port, loud.address.token, package=_PACKAGE) as next_line:
            await next_line()
            cycle = asyncio.create_task(next_line())
            try:
                yield cycle
                if cycle.done():
                    cycle.result()  # raises if the callers have died
            finally:
                cycle.cancel()

    return noise


@asynccontextmanager
async def files(loud: Loud) -> AsyncIterator[Cycle]:
    """Sends files that are expensive to read, and requests to a model whose chat template never ends."""

    def make_model() -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        from control.models.catalog.models import BaseModel

        folder = loud.folder / TEMPLATE_MODEL
        folder.mkdir(exist_ok=True)
        Tokenizer(WordLevel({"?": 0}, unk_token="?")).save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(ENDLESS_TEMPLATE)
        values = {"path": str(folder), "revision": TEMPLATE_MODEL}
        with loud.tenant() as organization:
            BaseModel.objects.get_or_create(organization=organization, name=TEMPLATE_MODEL, defaults=values)

    await asyncio.to_thread(make_model)
    async with calls("files")(loud) as cycle:
        yield cycle


NOISES: dict[str, Callable[[Loud], AbstractAsyncContextManager[Cycle | None]]] = {
    "streams": streams,
    "webhooks": webhooks,
    "stagings": stagings,
    "bodies": calls("bodies"),
    "jobs": jobs,
    "bombs": calls("bombs"),
    "files": files,
    "feeds": calls("feeds"),
}
TITLES = {
    "streams": f"{NUM_STREAMS} open streams",
    "webhooks": f"{NUM_RECEIVERS} dead webhooks",
    "stagings": f"{NUM_STAGINGS} slow stagings",
    "bodies": "bodies without a key",
    "jobs": f"{NUM_JOBS:,} queued jobs",
    "bombs": "bombs as bodies",
    "files": "bombs as files, grammars and templates",
    "feeds": f"{NUM_FEEDS} feeds of events",
}
