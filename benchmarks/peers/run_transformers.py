"""Runner of Hugging Face `generate`, one prompt at a time.

Settings: model; prompt_lookup, the maximum number of drafted tokens, or None.
"""

import time
from typing import Any

import torch
import transformers

from benchmarks.peers.wire import Answers, Job, acceptance_length, serve


class Transformers:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.bfloat16)
        self._model.eval()
        self._prompt_lookup = settings.get("prompt_lookup")
        self._pass_ends: list[float] = []
        self._model.register_forward_hook(lambda *_: self._pass_ends.append(time.perf_counter()))
        self.about = {"engine": "transformers", "version": transformers.__version__}

    def answer(self, job: Job) -> Answers:
        if job.concurrency != 1:
            raise ValueError(f"concurrency must be 1, got {job.concurrency}")
        outputs, num_passes, ttft_seconds = [], [], []
        started = time.perf_counter()
        for prompt in job.prompts:
            self._pass_ends.clear()
            began = time.perf_counter()
            outputs.append(self._generate(prompt, job.max_tokens))
            num_passes.append(len(self._pass_ends))
            ttft_seconds.append(self._pass_ends[0] - began)  # the first pass reads the prompt and gives the first token
        return Answers(
            outputs=outputs,
            seconds=time.perf_counter() - started,
            ttft_seconds=ttft_seconds,
            acceptance_length=acceptance_length(outputs, num_passes),
            prefill_seconds=sum(ttft_seconds),
        )

    @torch.inference_mode()
    def _generate(self, prompt: list[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        options = {"prompt_lookup_num_tokens": self._prompt_lookup} if self._prompt_lookup else {}
        prompt_and_answer = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, **options
        )
        tokens: list[int] = prompt_and_answer[0, len(prompt) :].tolist()
        return tokens


if __name__ == "__main__":
    serve(Transformers)
