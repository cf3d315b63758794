"""Sends the streams of the day through the gateway. Every request is sent once: nothing is repeated after an error."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from benchmarks.day.plan import ENDPOINT, Plan
from benchmarks.day.records import Answer, Request, Stream
from slipstream import APIError, Client, Completion

_MAX_OPEN = 32
_POLL_SECONDS = 0.5


class Traffic:
    """`sent` has all requests that were sent, and `ended` their streams in the order of their ends."""

    def __init__(self, client: Client, plan: Plan, requests: Mapping[str, Iterator[Request]]) -> None:
        self.sent: list[Request] = []
        self.ended: list[Stream] = []
        self._client = client.with_options(max_retries=0, headers={"X-Scale-Up-Timeout": "600"})
        self._plan = plan
        self._requests = requests
        self._pool = ThreadPoolExecutor(_MAX_OPEN, thread_name_prefix="stream")

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def remaining(self, phase: str) -> int:
        """Returns how many streams the phase may still send."""
        return max(0, self._plan.limit(phase) - len(self.sent))

    def send(self, phase: str, domain: str) -> "Future[None]":
        request = next(self._requests[domain])
        self.sent.append(request)
        return self._pool.submit(self._run, request, phase)

    def keep_open(
        self, phase: str, domain: str, *, concurrency: int, until: Callable[[], bool] = lambda: False
    ) -> bool:
        """Keeps so many streams open until `until()` is true or the phase has no streams left, and waits for their
        ends. Returns whether `until()` became true."""
        running: list[Future[None]] = []
        has_come = False
        while self.remaining(phase) and not has_come:
            running = [stream for stream in running if not stream.done()]
            while len(running) < concurrency and self.remaining(phase):
                running.append(self.send(phase, domain))
            has_come = until()
            time.sleep(_POLL_SECONDS / 10)
        _wait(running)
        return has_come

    def paced(self, phase: str, domain: str, *, until: Callable[[], bool]) -> bool:
        """Sends streams at the plan's pace until `until()` is true or the phase has no streams left. Returns whether it
        became true. If the deployment is too slow for the pace, a stream waits until fewer than `concurrency` are open.
        """
        running, due, has_come = list[Future[None]](), time.monotonic(), until()
        while self.remaining(phase) and not has_come:
            running = [stream for stream in running if not stream.done()]
            if time.monotonic() >= due and len(running) < self._plan.concurrency:
                running.append(self.send(phase, domain))
                due = time.monotonic() + 60.0 / self._plan.per_minute
            time.sleep(_POLL_SECONDS)
            has_come = until()
        _wait(running)
        return has_come

    def _run(self, request: Request, phase: str) -> None:
        collected = _Collected()
        started_at, error = time.time(), ""
        try:
            for piece in self._client.chat.stream(model=ENDPOINT, **request.body):
                collected.add(piece)
        except APIError as failure:
            error = f"{type(failure).__name__}: {failure}"
        first = collected.first_at
        self.ended.append(
            Stream(
                request=request.name,
                phase=phase,
                domain=request.domain,
                started_at=started_at,
                ended_at=time.time(),
                first_token_seconds=None if first is None else first - started_at,
                acceptance_length=collected.acceptance_length,
                answer=None if error else collected.answer(),
                error=error,
            )
        )


class _Collected:
    def __init__(self) -> None:
        self.first_at: float | None = None
        self.acceptance_length: float | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finish_reason: str | None = None

    def add(self, piece: Completion) -> None:
        choice = piece.choices[0] if piece.choices else {}
        if piece.text and self.first_at is None:
            self.first_at = time.time()
        self._texts.append(piece.text)
        self._token_ids += choice.get("token_ids") or []
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        figures = (piece.metrics or {}).get("speculative_decoding") or {}
        self.acceptance_length = figures.get("mean_acceptance_length", self.acceptance_length)

    def answer(self) -> Answer | None:
        """Returns None if the stream ended without a reason."""
        if self._finish_reason is None:
            return None
        return Answer("".join(self._texts), self._finish_reason, tuple(self._token_ids))


def _wait(running: "list[Future[None]]") -> None:
    for stream in running:
        stream.result()
