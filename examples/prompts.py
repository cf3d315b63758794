"""Grade-school word problems as rows of OpenAI batch files: a training set and a held-out set.

The generator gsm_symbolic in `reasoning_gym` makes the questions with a fixed seed, so that every run uses the same
questions. No question is in both sets, but the questions of both sets are made from the same hundred templates. Real
traffic is similarly repetitive.

    python -m examples.prompts FOLDER      writes FOLDER/distill.jsonl and FOLDER/held_out.jsonl
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20250219
SYSTEM = "You are a helpful assistant. You first think about the reasoning process and then provide the answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSets:
    distill: list[str]
    held_out: list[str]

    def __post_init__(self) -> None:
        if shared := set(self.distill) & set(self.held_out):
            raise ValueError(f"the two sets must not share questions, got {len(shared)} shared questions")


def prompt_sets(num_distill: int, num_held_out: int, *, seed: int = SEED) -> PromptSets:
    """Returns distinct questions. The held-out ones are drawn first, so that they do not depend on `num_distill`."""
    questions = _distinct_questions(seed)
    held_out = [next(questions) for _ in range(num_held_out)]
    return PromptSets(distill=[next(questions) for _ in range(num_distill)], held_out=held_out)


def _distinct_questions(seed: int) -> Iterator[str]:
    import reasoning_gym  # imported here, because most importers of this module do not need it

    dataset = reasoning_gym.create_dataset("gsm_symbolic", size=100_000, seed=seed)
    seen = set()
    for index in range(len(dataset)):
        question = dataset[index]["question"]
        if question not in seen:
            seen.add(question)
            yield question


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question: {question}"}]


def chat_row(custom_id: str, messages: list[dict[str, str]], *, model: str, max_tokens: int) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_rows(path: Path, questions: Sequence[str], *, prefix: str, model: str, max_tokens: int) -> None:
    rows = (
        chat_row(f"{prefix}-{number:04}", messages(question), model=model, max_tokens=max_tokens)
        for number, question in enumerate(questions)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes word problems as OpenAI batch rows.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--distill", type=int, default=192, metavar="N", help="training questions (default 192)")
    parser.add_argument("--held-out", type=int, default=32, metavar="N", help="held-out questions (default 32)")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--max-tokens", type=int, default=160)
    args = parser.parse_args()
    sets = prompt_sets(args.distill, args.held_out)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, questions in (("distill", sets.distill), ("held_out", sets.held_out)):
        path = args.folder / f"{name}.jsonl"
        write_rows(path, questions, prefix=name, model=args.model, max_tokens=args.max_tokens)
        print(f"{path}: {len(questions)} rows")


if __name__ == "__main__":
    main()
