"""Batches: many prompts in, one file of answers out, in the order of the prompts."""

from collections.abc import Callable, Iterator, Mapping

from slipstream.errors import BatchFailed
from slipstream.http import Http, path_of
from slipstream.types import Batch
from slipstream.waiting import wait_for


class Batches:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self,
        *,
        input_file_id: str,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
    ) -> Batch:
        body = {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": completion_window}
        return Batch.from_json(self._http.post("batches", body | ({"metadata": dict(metadata)} if metadata else {})))

    def retrieve(self, batch_id: str) -> Batch:
        return Batch.from_json(self._http.get(path_of("batches", batch_id)))

    def list(self) -> Iterator[Batch]:
        return (Batch.from_json(values) for values in self._http.pages("batches"))

    def cancel(self, batch_id: str) -> Batch:
        return Batch.from_json(self._http.post(path_of("batches", batch_id, "cancel")))

    def wait(
        self,
        batch_id: str,
        *,
        on_progress: Callable[[Batch], None] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Batch:
        """The completed batch.

        Raises:
            BatchFailed: it failed, expired or was cancelled, or not one of its rows was answered.
            WaitTimeout: the time is up; the batch goes on.
        """
        batch = wait_for(
            lambda: self.retrieve(batch_id),
            lambda batch: batch.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
            sleep=self._http.sleep,
        )
        if batch.status != "completed" or batch.output_file_id is None:
            raise BatchFailed(batch)
        return batch
