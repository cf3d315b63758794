"""Generates answers to a list of requests, for batches, evaluation and benchmarks."""

from collections.abc import Callable, Sequence

from engine.loop import Engine
from engine.request import Completion, FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob


def generate(
    engine: Engine, requests: Sequence[Request], *, on_output: Callable[[StepOutput], None] | None = None
) -> list[Completion]:
    """Runs the engine until all requests have finished. Returns completions in the order of `requests`.

    Raises: RequestTooLong, ValueError: a request can't be added. Then no pass has run, and the requests before it
    remain queued.
    """
    tokens: dict[str, list[int]] = {}
    logprobs: dict[str, list[TokenLogprob]] = {}
    finished: dict[str, tuple[FinishReason, SpeculationStats]] = {}
    for request in requests:
        engine.add(request)
        tokens[request.request_id], logprobs[request.request_id] = [], []
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            logprobs[output.request_id] += output.logprobs or ()
            if output.finish_reason is not None:
                finished[output.request_id] = (output.finish_reason, output.speculation or SpeculationStats())
            if on_output is not None:
                on_output(output)
    return [
        Completion(
            request.request_id,
            tuple(tokens[request.request_id]),
            None if request.sampling.num_logprobs is None else tuple(logprobs[request.request_id]),
            *finished[request.request_id],
        )
        for request in requests
    ]
