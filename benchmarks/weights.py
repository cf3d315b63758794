"""Compares the weight formats of a model on the CPU, in perplexity and in speed.

    python -m benchmarks.weights --speculator DIR --prompts GSM8K.jsonl

For bf16, int8 and int4, the engine converts the model's own weights. For "fp8", this command writes a checkpoint with
float8 weights and one scale per output. On the CPU, the engine widens this checkpoint to bf16.

1. The perplexity of `question + answer` texts: exp(mean over the tokens of -log p(token | the tokens before it)).
2. Tokens per second of one request at a time, with each drafter, and how many answers equal those without a drafter.
   All formats and drafters take turns in each round, and every second round reverses their order. Each round has new
   questions. The table shows three medians over the rounds: the speed, its ratio to the speed of bf16 with the same
   drafter in the same round, and its ratio to the speed of bf16 without a drafter in the same round.

The command prints the perplexities as lines of JSON, and the speeds as a table in Markdown.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from benchmarks.workload import arguments, read_prompts, speculator_kind
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import prepare

FORMATS = ("bf16", "int8", "int4", "fp8")
PLAIN = "none"
_MAX_SEQ_LEN = 8192
_ROWS = 64  # number of rows whose logits are computed at a time
_FLOAT8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}
    },
    "ignore": ["lm_head"],
}


@dataclass(slots=True)
class Arm:
    """A weight format with a drafter, and what was measured with them."""

    weights: str
    drafter: str
    engine: Engine
    rates: list[float] = field(default_factory=list)  # tokens per second, by round
    answers: list[tuple[int, ...]] = field(default_factory=list)
    num_passes: int = 0
    num_accepted: int = 0

    @property
    def acceptance_length(self) -> float:
        return 1 + self.num_accepted / max(1, self.num_passes)


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments("Compare the weight formats of a model on the CPU.")
    parser.add_argument("--speculator", type=Path, metavar="DIR", help="folder of a trained speculator")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--count", type=int, default=6, help="questions of a round (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=160, help="maximum tokens of each answer (default: %(default)s)"
    )
    args = parser.parse_args(given)
    folder: Path = args.model or prepare()
    with tempfile.TemporaryDirectory() as temporary:
        models = dict(_models(folder, Path(temporary)))
    if args.prompts is not None:
        _print_perplexities(models, Tokenizer.load(folder), _texts(args.prompts))
    arms = list(_arms(models, folder, args.speculator))
    _measure(arms, folder, args)
    return _print_table(arms)


def _models(folder: Path, temporary: Path) -> Iterator[tuple[str, Model]]:
    for name in FORMATS:
        source, weights = folder, name
        if name == "fp8":
            source = _write_float8(folder, temporary)
        if name in ("bf16", "fp8"):
            weights = "auto"
        yield name, load_model(source, dtype="bfloat16", weights=weights, device="cpu")


def _write_float8(folder: Path, target: Path) -> Path:
    """Quantizes the linear weights of the layers. Returns the folder of the checkpoint."""
    stored: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            module = name.removesuffix(".weight")
            if not module.endswith("_proj"):
                stored[name] = tensor
                continue
            scales = (tensor.float().abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max).bfloat16()
            stored[name] = (tensor.float() / scales.float()).to(torch.float8_e4m3fn)
            stored[f"{module}.weight_scale"] = scales
    save_file(stored, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": _FLOAT8}
    (target / "config.json").write_text(json.dumps(config))
    return target


def _texts(path: Path, count: int = 64) -> list[str]:
    """Returns question and answer of each of the last `count` lines. Speed is measured with the first lines."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[-count:]]
    return [f"{row['question']}\n{row['answer']}" for row in rows]


@torch.inference_mode()
def _print_perplexities(models: dict[str, Model], tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    for name, model in models.items():
        ids = torch.tensor(tokenizer.encode("\n\n".join(texts)))[: min(_MAX_SEQ_LEN, model.max_positions)]
        chunks = zip(model.hidden_states(ids[:-1]).final.split(_ROWS), ids[1:].split(_ROWS), strict=True)
        nats = [cross_entropy(model.logits(hidden).float(), expected, reduction="sum") for hidden, expected in chunks]
        perplexity = math.exp(sum(map(float, nats)) / (len(ids) - 1))
        print(json.dumps({"weights": name, "perplexity": round(perplexity, 3), "tokens": len(ids) - 1}), flush=True)


def _engine(model: Model, drafter: Drafter) -> Engine:
    return Engine(model, drafter, EngineConfig(max_batch_size=1, max_seq_len=min(_MAX_SEQ_LEN, model.max_positions)))


def _arms(models: dict[str, Model], folder: Path, speculator: Path | None) -> Iterator[Arm]:
    trained = None if speculator is None else speculator_kind(speculator)
    drafters = [PLAIN, "suffix", *([] if trained is None else [trained, f"{trained}+suffix"])]
    for weights, model in models.items():
        for name in drafters:
            is_trained = trained is not None and trained in name
            drafter = NoDrafter() if name == PLAIN else load_drafter(name, model, speculator if is_trained else None)
            yield Arm(weights, name, _engine(model, drafter))


def _measure(arms: Sequence[Arm], folder: Path, args: argparse.Namespace) -> None:
    tokenizer = Tokenizer.load(folder)
    prompts = read_prompts(args.prompts, tokenizer, max_seq_len=1024, limit=args.count * (args.rounds + 1))
    for round_number in range(args.rounds + 1):
        chosen = prompts[args.count * round_number : args.count * (round_number + 1)]
        for arm in arms if round_number % 2 else reversed(arms):
            _answer(arm, [prompt.token_ids for prompt in chosen], args.max_tokens, counts=round_number > 0)


def _answer(arm: Arm, prompts: Sequence[tuple[int, ...]], max_tokens: int, *, counts: bool) -> None:
    """counts: whether speed and acceptance are recorded. False in the first round, in which the engine warms up."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    requests = [Request(f"{number}", ids, sampling, memory="benchmark") for number, ids in enumerate(prompts)]
    started = time.perf_counter()
    completions = generate(arm.engine, requests)
    seconds = time.perf_counter() - started
    arm.answers += [completion.token_ids for completion in completions]
    if counts:
        arm.rates.append(sum(len(completion.token_ids) for completion in completions) / seconds)
        arm.num_passes += sum(completion.speculation.num_spec_steps for completion in completions)
        arm.num_accepted += sum(completion.speculation.num_accepted_draft_tokens for completion in completions)


def _print_table(arms: Sequence[Arm]) -> int:
    """Returns the exit code: 1 if an answer differs from the one without a drafter."""
    by_name = {(arm.weights, arm.drafter): arm for arm in arms}
    print("| weights | drafter | tok/s | × bf16 | × plain bf16 | acceptance length | equal to plain |")
    print("|---|---|---|---|---|---|---|")
    all_equal = True
    for arm in arms:
        plain = by_name[arm.weights, PLAIN]
        num_equal = sum(a == b for a, b in zip(arm.answers, plain.answers, strict=True))
        all_equal &= num_equal == len(plain.answers)
        ratios = [_ratio(arm, by_name["bf16", other]) for other in (arm.drafter, PLAIN)]
        print(
            f"| {arm.weights} | {arm.drafter} | {statistics.median(arm.rates):.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} "
            f"| {arm.acceptance_length:.2f} | {num_equal} of {len(plain.answers)} |"
        )
    return 0 if all_equal else 1


def _ratio(arm: Arm, other: Arm) -> float:
    return statistics.median(a / b for a, b in zip(arm.rates, other.rates, strict=True))


if __name__ == "__main__":
    sys.exit(main())
