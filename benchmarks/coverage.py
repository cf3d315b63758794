"""Measures the share of the tokens of new answers that the draft vocabulary contains, for several vocabularies.

    python -m benchmarks.coverage --rows 300 --prompts FILE.jsonl

The draft vocabulary consists of the tokens of the model's answers to `--rows` training questions. With the
hyperparameter `draft_vocab_fill`, it is filled with other tokens up to each of `--sizes`. The printed table has two
shares of the tokens of held-out answers:

    covered              tokens that are in the draft vocabulary
    with the own prompt  tokens that are in the draft vocabulary or in the prompt of the same request, whose tokens
                         Medusa and EAGLE-3 can draft as well (engine/drafters/prompt_tokens.py)

Questions and answers are made as in `benchmarks.train`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from benchmarks.train import questions, write_answers
from benchmarks.workload import WorkloadError, arguments
from engine.errors import EngineError
from engine.load import load_model
from examples.prepare_model import ModelNotFoundError, prepare
from workers.hyperparameters.loop import LoopParameters
from workers.training.data import Conversation, read_corpus
from workers.training.preparation import Preparation

_ROOT = Path(__file__).resolve().parents[1]
_HEADER = """\
| tokens outside the answers | draft vocabulary | covered | with the own prompt | further tokens per prompt |
|---|---|---|---|---|"""


def run(args: argparse.Namespace) -> list[str]:
    """Returns the lines of the table. Raises: WorkloadError, EngineError, ModelNotFoundError."""
    model: Path = args.model or prepare()
    held_out, training = questions(args.prompts, args.rows, args.held_out)
    args.folder.mkdir(parents=True, exist_ok=True)
    answers = args.folder / "coverage.jsonl"
    write_answers(model, [*held_out, *training], answers, kept=args.folder, max_tokens=args.max_tokens)
    # Training rounds the number of validation answers up; - 0.5 makes the result exactly `held_out`.
    corpus = read_corpus([answers], validation_fraction=(args.held_out - 0.5) / (args.rows + args.held_out))
    preparation = Preparation(
        model_dir=model,
        target=load_model(model),
        corpus=corpus,
        cache=args.folder / "cache",
        seed=0,
        emit=lambda event: None,
    )
    lines = [_HEADER]
    for size, fill in [(args.sizes[-1], False), *((size, True) for size in args.sizes)]:
        vocab = preparation.draft_vocab(size, LoopParameters(draft_vocab_fill=fill))
        lines.append(_line(fill, vocab, corpus.validation))
    return lines


def _line(fill: bool, vocab: Tensor, conversations: Sequence[Conversation]) -> str:
    drafted = set(vocab.tolist())
    tokens = [(token, c) for c in conversations for token in c.completion_token_ids]
    covered = sum(token in drafted for token, _ in tokens)
    prompts = {c.custom_id: set(c.prompt_token_ids) for c in conversations}
    extended = sum(token in drafted or token in prompts[c.custom_id] for token, c in tokens)
    further = sum(len(prompt - drafted) for prompt in prompts.values()) / len(prompts)
    shares = f"{covered / len(tokens):.1%} | {extended / len(tokens):.1%}"
    return f"| {'prompts, likeliest' if fill else 'none'} | {len(drafted)} | {shares} | {further:.0f} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Measures how many tokens of new answers are in the draft vocabulary.")
    parser.add_argument("--rows", type=int, required=True, metavar="N", help="number of training answers")
    parser.add_argument("--held-out", type=int, default=32, metavar="N", help="number of new answers (default 32)")
    max_tokens = "maximum number of tokens of an answer (default 160)"
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help=max_tokens)
    sizes = "sizes of filled draft vocabularies (default 4096 8192)"
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192], metavar="N", help=sizes)
    folder = "folder for answers (default var/train)"
    parser.add_argument("--folder", type=Path, default=_ROOT / "var" / "train", metavar="DIR", help=folder)
    try:
        lines = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
