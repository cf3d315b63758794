"""Results of a batch in input order, as far as they go, before and after its end.

    running   winning shards, up to the first one that is open
    ended     output and error file, merged by row: the last part of an output row's id is its number
"""

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import StreamingHttpResponse

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing
from control.data.files.selectors import files_list
from control.queue.jobs.models import JobShard
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.selectors import is_valid
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.batches.results import json_line, read_json_lines
from control.workflows.batches.state import TERMINAL

CHUNK_BYTES = 1 << 16
POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0  # an empty line, so that nobody between us and the caller takes a quiet stream for a dead one


class ResultsResponse(StreamingHttpResponse):
    """One line a row. Under ASGI it can go on until the batch has ended, or the key that asked."""

    def __init__(self, batch: Batch, *, after: int, is_followed: bool, key: ApiKey) -> None:
        self._reader = ResultsReader(batch, after=after)
        self._key = key
        self._is_followed = is_followed
        super().__init__(iter(self._reader.read, b""), content_type="application/x-ndjson")
        self["Cache-Control"] = "no-cache"
        self["X-Accel-Buffering"] = "no"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        spoken_at = time.monotonic()
        while True:
            is_over = self._reader.is_over
            chunk = await sync_to_async(self._reader.read)()
            if not chunk:
                if is_over or not self._is_followed:
                    return
                await sync_to_async(_give_back_connection)()
                await asyncio.sleep(POLL_SECONDS)
                await sync_to_async(self._reader.refresh)()
                await sync_to_async(self._check_key)()
                if time.monotonic() - spoken_at < HEARTBEAT_SECONDS:
                    continue
                chunk = b"\n"
            spoken_at = time.monotonic()
            yield chunk


    def _check_key(self) -> None:
        """Raises: ConnectionAbortedError: a clean end would say that this was all; so the caller comes back: 401."""
        with as_tenant(self._key.organization_id):
            key = ApiKey.objects.select_related("project").filter(pk=self._key.pk).first()
        if key is None or not is_valid(key):
            raise ConnectionAbortedError("the key of a followed batch is not valid any more")


class ResultsReader:
    def __init__(self, batch: Batch, *, after: int) -> None:
        """Raises: ApiError: 404, the batch has ended and its files are deleted or have expired."""
        self._batch = batch
        self._row = after
        _check_files(batch)
        self._lines = self._finished()

    @property
    def is_over(self) -> bool:
        """The batch had ended when it was last looked at: what `read` brings then is all there will be."""
        return self._batch.status in TERMINAL

    def refresh(self) -> None:
        with as_tenant(self._batch.organization_id):
            self._batch.refresh_from_db()

    def read(self) -> bytes:
        """The next lines; nothing: there are none yet, or no more."""
        with as_tenant(self._batch.organization_id):  # the request that began this stream is over
            return self._read()

    def _read(self) -> bytes:
        lines, size = [], 0
        while size < CHUNK_BYTES:
            line = next(self._lines, None)
            if line is None:
                self._lines = self._finished()
                break
            lines.append(line)
            size += len(line)
            self._row += 1
        return b"".join(lines)

    def _finished(self) -> Iterator[bytes]:
        if not self.is_over:
            try:
                yield from self._of_shards()
                return
            except ObjectMissing:  # the batch has ended meanwhile, and its shards are gone
                self._batch.refresh_from_db()
        if self.is_over:
            yield from self._of_files()

    def _of_shards(self) -> Iterator[bytes]:
        first = self._row
        shards = JobShard.objects.filter(job_id=self._batch.job_id, row_to__gt=first).order_by("row_from")
        for shard in shards:
            if not shard.storage_key:
                return
            for entry in read_json_lines(shard.storage_key):
                if entry["row"] >= first:
                    yield json_line(entry["output"])

    def _of_files(self) -> Iterator[bytes]:
        files = [file for file in (self._batch.output_file, self._batch.error_file) if file is not None]
        merged = heapq.merge(*(read_json_lines(file.storage_key) for file in files), key=_row_number)
        try:
            yield from (json_line(output) for output in islice(merged, self._row, None))
        except ObjectMissing:
            return  # deleted while we read: the stream just ends


def _give_back_connection() -> None:
    """A stream must not hold one through its silence."""
    if not connection.in_atomic_block:  # as it is in tests alone
        connection.close()


def _row_number(output: dict[str, Any]) -> int:
    return int(output["id"].rsplit("_", 1)[-1])


def _check_files(batch: Batch) -> None:
    if batch.status not in TERMINAL or not batch.total:
        return
    ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
    if not ids or files_list(batch.organization).filter(pk__in=ids).count() < len(ids):
        message = f"The results of batch {batch.pk} have been deleted."
        raise ApiError(404, message, "results_deleted", "batch_id")
