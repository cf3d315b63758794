"""Computes answers with an engine without a drafter. Answers of workers and endpoints must equal these."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    text: str
    num_prompt_tokens: int
    num_tokens: int


def plain_answers(
    model_dir: Path,
    contents: Sequence[str],
    *,
    max_tokens: int,
    ignore_eos: bool = False,
    adapter_dir: Path | None = None,
) -> list[PlainAnswer]:
    """Returns greedy answers to one user message each."""
    engine = load_engine(model_dir, drafter="none", config=EngineConfig(device="cpu"))
    if adapter_dir is not None:
        engine.adapters.load("adapter", adapter_dir)
    tokenizer = Tokenizer.load(model_dir)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
    prompts = [tuple(tokenizer.encode_chat([{"role": "user", "content": content}])) for content in contents]
    requests = [
        Request(str(number), prompt, sampling, adapter=None if adapter_dir is None else "adapter")
        for number, prompt in enumerate(prompts)
    ]
    return [
        PlainAnswer(tokenizer.decode(completion.token_ids), len(prompt), len(completion.token_ids))
        for prompt, completion in zip(prompts, generate(engine, requests), strict=True)
    ]
