"""Runner of llama.cpp. Its server runs in this process and gets prompts as token ids over HTTP.

Settings: gguf, the model's file; max_batch_size; max_seq_len; speculation, the name of one of llama.cpp's speculative
methods, or None.
"""

import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp  # type: ignore[import-not-found]  # lives in this runner's own environment

from benchmarks.peers.wire import Answers, Job, serve


class LlamaCpp:
    def __init__(self, settings: dict[str, Any]) -> None:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = settings["gguf"]
        parameters.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count()
        parameters.n_parallel = settings["max_batch_size"]
        parameters.n_ctx = settings["max_batch_size"] * settings["max_seq_len"]
        parameters.verbosity = -1
        if settings.get("speculation"):
            kinds = xllamacpp.common_speculative_type
            parameters.speculative.types = [kinds[f"COMMON_SPECULATIVE_TYPE_{settings['speculation']}"]]
        self._server = xllamacpp.Server(parameters)
        self.about = {"engine": "llama.cpp", "version": f"xllamacpp {xllamacpp.__version__}"}

    def answer(self, job: Job) -> Answers:
        started = time.perf_counter()
        with ThreadPoolExecutor(job.concurrency) as threads:
            replies = list(threads.map(lambda prompt: self._complete(prompt, job.max_tokens), job.prompts))
        seconds = time.perf_counter() - started
        timings = [reply["timings"] for reply in replies]
        accepted = sum(timing.get("draft_n_accepted", 0) for timing in timings)
        decoded = sum(timing["predicted_n"] - 1 for timing in timings)
        return Answers(
            outputs=[reply["tokens"] for reply in replies],
            seconds=seconds,
            ttft_seconds=[timing["prompt_ms"] / 1000 for timing in timings],
            acceptance_length=decoded / (decoded - accepted) if decoded > accepted else None,
        )

    def _complete(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "return_tokens": True}
        request = urllib.request.Request(
            f"{self._server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            reply: dict[str, Any] = json.load(response)
        return reply


if __name__ == "__main__":
    serve(LlamaCpp)
