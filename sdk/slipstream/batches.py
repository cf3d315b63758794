"""Batches: the service answers a file of prompts and returns a file of answers in the same order."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2

from slipstream.drivers import Exchange, Item, Items, Page, Steps, iteration, listing, procedure
from slipstream.errors import BatchFailed
from slipstream.http import D, Lines, Resource, connection_error, path_of, pause
from slipstream.plans import EnginePlan
from slipstream.types import Batch
from slipstream.waiting import wait_for


class Batches(Resource[D]):
    @procedure
    def create(
        self,
        *,
        input_file_id: str,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        model: str | None = None,
        metadata: Mapping[str, str] | None = None,
        quote_id: str | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
        priority: str | None = None,
    ) -> Steps[Batch]:
        """Create a batch.

        Args:
            model: the model for rows without `model`.
            quote_id: a quote whose cap limits the cost of the batch.
            engine: options of the engine; `slipstream.plans` lists them.
            hardware: `device_kind` or `name` of the device, as listed by `hardware.list`; the default is any device.
            priority: `low`, `normal` or `high`; the organization's jobs with a higher priority are run first.
        """
        body = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
            "model": model,
            "metadata": metadata,
            "quote_id": quote_id,
            "engine": engine,
            "hardware": hardware,
            "priority": priority,
        }
        return self.http.post(Batch, "batches", body)

    @procedure
    def plan(
        self,
        *,
        input_file_id: str,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        model: str | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[EnginePlan]:
        """Show how the engine of a batch with these arguments would use its memory. Nothing is created.

        Without `model`, the rows name their models, and the plan is unknown.
        """
        body: dict[str, Any] = {"input_file_id": input_file_id, "endpoint": endpoint}
        body |= {"completion_window": completion_window, "model": model, "engine": engine, "hardware": hardware}
        body["validate_only"] = True
        return self.http.post(EnginePlan, "batches", body)

    @procedure
    def retrieve(self, batch_id: str) -> Steps[Batch]:
        return self.http.get(Batch, path_of("batches", batch_id))

    @listing
    def list(self) -> Items[Page[Batch]]:
        return self.http.pages(Batch, "batches")

    @procedure
    def cancel(self, batch_id: str) -> Steps[Batch]:
        return self.http.post(Batch, path_of("batches", batch_id, "cancel"))

    @procedure
    def resume(self, batch_id: str) -> Steps[Batch]:
        """Create a batch that continues a failed, expired or cancelled one. Finished rows are copied free of charge."""
        return self.http.post(Batch, path_of("batches", batch_id, "resume"))

    @procedure
    def repair(self, batch_id: str, *, rows: Sequence[str], max_tokens: int | None = None) -> Steps[Batch]:
        """Create a batch that answers some rows of an ended batch again and copies all other results free of charge.

        Args:
            rows: `unfinished` (rows without a response), `failed` (rows that ran without an answer), or `cut` (rows
                whose answer ended at a limit of its length).
            max_tokens: limit of the new answers; required for `cut`.
        """
        body = {"rows": rows, "max_tokens": max_tokens}
        return self.http.post(Batch, path_of("batches", batch_id, "repair"), body)

    @iteration
    def results(self, batch_id: str, *, follow: bool = False) -> Items[dict[str, Any]]:
        """Yield the rows that are finished now, in input order. With `follow`, also wait for the unfinished rows.

        If the connection breaks, the stream continues after the last row, so that each row is yielded once.
        """
        num_rows, failures = 0, 0
        while True:
            params = {"after": num_rows, "follow": "true" if follow else "false"}
            exchange = Exchange(
                method="GET", path=path_of("batches", batch_id, "results"), options={"params": params}, stream=True
            )
            result = yield from self.http.send(exchange)
            lines = Lines(result)
            try:
                while (line := (yield from lines.read())) is not None:
                    yield Item(json.loads(line))
                    num_rows, failures = num_rows + 1, 0
                return
            except httpx2.TransportError as error:
                failures += 1
                if failures > self.http.max_retries:
                    raise connection_error(exchange, error) from error
                yield pause(failures - 1, {}, repr(error))

    @procedure
    def wait(
        self,
        batch_id: str,
        *,
        on_progress: Callable[[Batch], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Batch]:
        """Return the batch when it is completed.

        Raises:
            BatchFailed: the batch failed, expired or was cancelled, or all of its rows failed.
            WaitTimeout: `timeout_seconds` have passed; the batch continues.
        """
        batch = yield from wait_for(
            lambda: self.http.get(Batch, path_of("batches", batch_id)),
            lambda batch: batch.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
        if batch.status != "completed" or batch.output_file_id is None:
            raise BatchFailed(batch)
        return batch
