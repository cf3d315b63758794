"""The checks of each model: parity with transformers, equal answers with drafters, adapters, and speed."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, Request, SamplingParams
from tests.engine.drafters import every_drafter
from tests.tiny_model import make_tiny_model

PARITY = 1e-4  # the largest difference of a logit or a log-probability that is allowed in float32
_NEW_TOKENS = 24
_BATCH = 4
_REPEATS = 5


class CheckFailed(Exception):
    """A check of a model failed; the message says which difference was found."""


def parity(folder: Path, exact: Path, weights: str) -> float:
    """Returns the largest difference between the engine's logits in float32 and those of transformers.

    Args:
        folder: the model that the engine loads with the option `weights`; it may be quantized.
        exact: a model with the same numbers in a format that transformers loads.
    Raises: CheckFailed: the difference is larger than `PARITY`, or the logits are so small that the difference proves
    nothing.
    """
    token_ids = torch.randint(0, 250, (90,), generator=torch.Generator().manual_seed(1))
    model = load_model(folder, dtype="float32", weights=weights)
    logits = model.logits(model.hidden_states(token_ids).final)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(exact, dtype=torch.float32)(token_ids.unsqueeze(0)).logits[0]
    difference = float((logits - expected).abs().max())
    if not difference <= PARITY:
        raise CheckFailed(f"logits differ by {difference:.2g}")
    if expected.abs().max() < 0.1:
        raise CheckFailed("all logits are near zero, so that equal logits prove nothing")
    return difference


def equal_answers(model: Model, folder: Path) -> int:
    """Checks for each drafter that a batch of requests gets the same sampled answers as single requests without drafts.

    Returns the number of drafters.

    folder: an empty folder for a draft model.

    Raises: CheckFailed: token ids or log-probabilities of an answer differ.
    """
    requests = _requests(model.config.vocab_size)
    plain = [generate(Engine(model, NoDrafter(), _config(1)), [request])[0] for request in requests]
    draft_model = load_model(make_tiny_model(folder, "llama", seed=1, num_layers=1))
    drafters = every_drafter(model, draft_model, {completion.request_id: completion.token_ids for completion in plain})
    for drafter in drafters:
        answers = generate(Engine(model, drafter, _config(_BATCH)), requests)
        if list(map(_answer, answers)) != list(map(_answer, plain)):
            raise CheckFailed(f"answers with {drafter.name} differ")
    return len(drafters)


def adapter(model: Model, folder: Path, adapter_folder: Path, modules: tuple[str, ...]) -> float:
    """Returns the largest difference between the engine's log-probabilities with a LoRA adapter and those of peft.

    Args:
        model: the model in `folder`, loaded in float32.
        adapter_folder: the adapter is written to it.
        modules: names of the layers that the adapter changes.

    Raises: CheckFailed: the difference is too large, or the adapter has no effect.
    """
    from peft import LoraConfig, get_peft_model  # imported here, because importing peft takes seconds

    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=12, target_modules=list(modules), task_type="CAUSAL_LM")
    reference = get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), config).eval()
    for name, parameter in reference.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    reference.save_pretrained(str(adapter_folder))
    engine = Engine(model, NoDrafter(), _config(_BATCH))
    engine.adapters.load("adapter", adapter_folder)
    prompt = tuple(range(30, 60))
    params = SamplingParams(max_tokens=8, temperature=0.0, num_logprobs=0, ignore_eos=True)
    adapted, plain = (generate(engine, [Request("r", prompt, params, name)])[0] for name in ("adapter", None))
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + adapted.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(adapted.token_ids).unsqueeze(1)).squeeze(1)
    difference = float((_logprobs(adapted) - expected).abs().max())
    if torch.equal(_logprobs(adapted), _logprobs(plain)):
        raise CheckFailed("the adapter has no effect")
    if not difference <= PARITY:
        raise CheckFailed(f"log-probabilities differ from peft's by {difference:.2g}")
    return difference


def tokens_per_second(model: Model, folder: Path) -> tuple[float, float]:
    """Answers four prompts at a time in the model's dtype. Returns the speeds of the engine and of transformers."""
    prompts = torch.arange(3, 3 + 16 * _BATCH).view(_BATCH, 16)
    params = SamplingParams(max_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(prompt.tolist()), params) for i, prompt in enumerate(prompts)]
    engine = Engine(model, NoDrafter(), _config(_BATCH))
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)
    lengths = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS, "do_sample": False}

    def run_transformers() -> None:
        with torch.inference_mode():
            reference.generate(prompts, attention_mask=torch.ones_like(prompts), **lengths)

    times: dict[str, list[float]] = {"engine": [], "transformers": []}
    for _ in range(_REPEATS):  # in turns, so that other work on the machine affects both
        times["engine"].append(_seconds(lambda: generate(engine, requests)))
        times["transformers"].append(_seconds(run_transformers))
    ours, theirs = (_BATCH * _NEW_TOKENS / median(seconds[1:]) for seconds in times.values())
    return ours, theirs


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _config(batch_size: int) -> EngineConfig:
    return EngineConfig(max_batch_size=batch_size, kv_cache_bytes=1 << 24, draft_budget=12, prefill_chunk=64)


def _requests(vocab_size: int) -> list[Request]:
    """Returns requests. Half of their prompts contain repetitions, in which n-gram drafters find matches."""
    generator = torch.Generator().manual_seed(0)
    requests = []
    for index in range(6):
        prompt = torch.randint(vocab_size, (5 * index + 3,), generator=generator).tolist() * (1 + index % 2)
        params = SamplingParams(max_tokens=_NEW_TOKENS, temperature=0.8, seed=index, num_logprobs=1, ignore_eos=True)
        requests.append(Request(f"r{index}", tuple(prompt), params))
    return requests


def _answer(completion: Completion) -> tuple[object, ...]:
    return completion.request_id, completion.token_ids, completion.logprobs


def _logprobs(completion: Completion) -> torch.Tensor:
    assert completion.logprobs is not None  # the request asked for them
    return torch.tensor([token.logprob for token in completion.logprobs])
