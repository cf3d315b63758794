"""A benchmark runner without an engine: it answers each prompt with the reversed prompt.

The runner fails at the start if its setting `broken` is true, and for a job whose `max_tokens` is 0.
"""

from typing import Any

from benchmarks.peers.wire import Advance, Answers, Job, closed_loop, serve


class FakeRunner:
    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("broken"):
            raise RuntimeError("no such model")
        print("output that is not part of the protocol")
        self.about = {"engine": "fake", "version": "1"}

    def answer(self, job: Job) -> Answers:
        if job.max_tokens == 0:
            raise ValueError("nothing to do")
        waiting: list[tuple[int, list[int]]] = []

        def step() -> list[Advance]:
            advances = [(number, prompt[::-1], True) for number, prompt in waiting]
            waiting.clear()
            return advances

        return closed_loop(job, lambda number, prompt: waiting.append((number, prompt)), step)


if __name__ == "__main__":
    serve(FakeRunner)
