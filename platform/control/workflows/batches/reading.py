"""Reads the available results of a batch in input order, while it runs and after it has ended.

While the batch runs, the results are read from its shards, up to the first shard that is not finished. After the batch
has ended, they are read from its output and error files, merged by the row number at the end of each line's id.
"""

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import StreamingHttpResponse

from control.core.storage.backends import ObjectMissing
from control.queue.jobs.models import JobShard
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.selectors import is_valid
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.batches.results import json_line, read_json_lines, row_number
from control.workflows.batches.selectors import require_results
from control.workflows.batches.state import TERMINAL

CHUNK_BYTES = 1 << 16
POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0  # an empty line is sent after this time without a row, so that proxies keep the connection


class ResultsResponse(StreamingHttpResponse):
    """Streams one line per row.

    If `is_followed` is set (ASGI only), the stream continues until the batch ends or the API key becomes invalid.
    """

    def __init__(self, batch: Batch, *, after: int, is_followed: bool, key: ApiKey) -> None:
        self._reader = ResultsReader(batch, after=after)
        self._key = key
        self._is_followed = is_followed
        super().__init__(iter(self._reader.read, b""), content_type="application/x-ndjson")
        self["Cache-Control"] = "no-cache"
        self["X-Accel-Buffering"] = "no"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sent_at = time.monotonic()
        while True:
            is_over = self._reader.is_over
            chunk = await sync_to_async(self._reader.read)()
            if not chunk:
                if is_over or not self._is_followed:
                    return
                await sync_to_async(_close_connection)()
                await asyncio.sleep(POLL_SECONDS)
                await sync_to_async(self._reader.refresh)()
                await sync_to_async(self._check_key)()
                if time.monotonic() - sent_at < HEARTBEAT_SECONDS:
                    continue
                chunk = b"\n"
            sent_at = time.monotonic()
            yield chunk

    def _check_key(self) -> None:
        """Checks that the API key is still valid. Raises: ConnectionAbortedError: the key is no longer valid.

        A regular end of the stream would mean that the results are complete. After an aborted connection the client
        tries again and gets 401.
        """
        with as_tenant(self._key.organization_id, self._key.project_id):
            key = ApiKey.objects.select_related("organization", "project").filter(pk=self._key.pk).first()
        if key is None or not is_valid(key):
            raise ConnectionAbortedError("the key of a followed batch is not valid any more")


class ResultsReader:
    def __init__(self, batch: Batch, *, after: int) -> None:
        """Raises: ApiError: 404, the batch has ended and its files are deleted or have expired."""
        self._batch = batch
        self._row = after  # number of the next row, from 0
        if self.is_over and batch.total:
            require_results(batch)
        self._lines = self._available_lines()

    @property
    def is_over(self) -> bool:
        """Whether the batch had ended at the last `refresh`. If so, `read` can return all lines that remain."""
        return self._batch.status in TERMINAL

    def refresh(self) -> None:
        with as_tenant(self._batch.organization_id, self._batch.project_id):
            self._batch.refresh_from_db()

    def read(self) -> bytes:
        """Returns the next lines; empty if no further line is available yet, or after the last line."""
        # The stream is read after the request's own tenant context ended.
        with as_tenant(self._batch.organization_id, self._batch.project_id):
            return self._read()

    def _read(self) -> bytes:
        lines, size = [], 0
        while size < CHUNK_BYTES:
            line = next(self._lines, None)
            if line is None:
                self._lines = self._available_lines()
                break
            lines.append(line)
            size += len(line)
            self._row += 1
        return b"".join(lines)

    def _available_lines(self) -> Iterator[bytes]:
        if not self.is_over:
            try:
                yield from self._lines_of_shards()
                return
            except ObjectMissing:  # the batch has ended meanwhile, and its shards are deleted
                self._batch.refresh_from_db()
        if self.is_over:
            yield from self._lines_of_files()

    def _lines_of_shards(self) -> Iterator[bytes]:
        first = self._row
        shards = JobShard.objects.filter(job_id=self._batch.job_id, row_to__gt=first).order_by("row_from")
        for shard in shards:
            if not shard.storage_key:
                return
            for entry in read_json_lines(shard.storage_key):
                if entry["row"] >= first:
                    yield json_line(entry["output"])

    def _lines_of_files(self) -> Iterator[bytes]:
        files = [file for file in (self._batch.output_file, self._batch.error_file) if file is not None]
        merged = heapq.merge(*(read_json_lines(file.storage_key) for file in files), key=row_number)
        try:
            yield from (json_line(output) for output in islice(merged, self._row, None))
        except ObjectMissing:
            return  # the files were deleted while they were read: the stream ends


def _close_connection() -> None:
    """Closes the database connection, so that a stream does not hold one while it waits."""
    if not connection.in_atomic_block:  # a test's transaction must stay open
        connection.close()
