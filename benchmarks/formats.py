"""Measures requests with JSON schemas, tools, log-probabilities and penalties, and how they slow other requests down.

    python -m benchmarks.formats [--model DIR] [--prompts FILE.jsonl]

1. Four requests decode at a time without a drafter. Three of them are greedy and have no options. The fourth is the
   same ("plain"), or has a JSON schema, log-probabilities or penalties. The speed of the three requests is measured
   while all four decode. Each round tries every kind of fourth request, so that all kinds are measured under the same
   load of the machine. The command prints medians over the rounds of three figures: the speed; the speed divided by the
   speed beside "plain" in the same round; and the time per step in which the host samples the tokens of all four.
2. Answers with a JSON schema and calls of a tool are generated, four at a time: without a drafter, with n-gram drafts,
   and with suffix drafts, which may copy earlier answers of the same run. Each answer must match its schema and equal
   the answer without a drafter.

The command prints lines of JSON:

    {"beside": "schema", "tokens_per_second_of_three": ..., "share_of_plain": ..., "sampling_ms_per_step": ..., ...}
    {"format": "tool", "drafter": "suffix", "answers": 16, "valid": 16, "equal": 16, "tokens_per_second": ..., ...}

The exit code is 0 only if all answers are valid and equal.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.workload import PROBLEMS_SEED, add_engine, arguments
from engine.config import EngineConfig
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.grammars.compiler import GrammarCompiler
from engine.load import load_engine
from engine.loop import Engine
from engine.openai.answer import AnswerStream
from engine.openai.requests import ParsedRequest, parse_chat
from engine.openai.responses import Head, chat_completion
from engine.request import Completion, Request
from engine.tokenizer import Tokenizer
from examples.prepare_model import prepare
from examples.prompts import messages, prompt_sets

Body = dict[str, Any]

_CONCURRENCY = 4
_NUM_STEPS = 40  # number of steps in each round of part 1
_STEP = {"type": "string", "pattern": "^[A-Za-z0-9 .,+*/=$-]{4,40}$"}


def _solution(min_steps: int, max_steps: int) -> Body:
    properties = {
        "steps": {"type": "array", "items": _STEP, "minItems": min_steps, "maxItems": max_steps},
        "answer": {"type": "integer", "minimum": 0, "maximum": 9999},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema(schema: Body) -> Body:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "solution", "schema": schema}}}


_SOLUTION = _solution(1, 3)
_TOOL = {"type": "function", "function": {"name": "submit", "parameters": _SOLUTION}}
BESIDE: dict[str, Body] = {  # options of the fourth request in part 1
    "plain": {},
    "schema": _schema(_solution(100, 200)),  # does not end before the other requests
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
}
FORMATS: dict[str, Body] = {
    "schema": _schema(_SOLUTION),
    "tool": {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
}
DRAFTERS = {"none": NoDrafter, "suffix": SuffixDrafter, "ngram": NgramDrafter}  # "none" comes first

# SmolLM2's own template has no tools.
_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nCall tools with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>.\n"
    "{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)  # fmt: skip


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments("Measure requests with formats, tools, log-probabilities and penalties, and their neighbours.")
    add_engine(parser)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of part 1 (default: %(default)s)")
    parser.add_argument("--count", type=int, default=16, help="answers of each format (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=320, help="maximum tokens of each answer of part 2 (default: %(default)s)"
    )
    args = parser.parse_args(given)
    config = EngineConfig(
        max_batch_size=_CONCURRENCY, max_seq_len=1024, weights=args.weights, dtype=args.dtype, device=args.device
    )
    questions = _questions(args.prompts, max(args.count, _CONCURRENCY))
    with tempfile.TemporaryDirectory() as copy:
        folder = _with_tools(args.model or prepare(), Path(copy))
        requests = _Requests(load_engine(folder, config=config), folder, questions, args.max_tokens)
        _compare_neighbours(requests, args.rounds)
        return 0 if _compare_drafters(requests, args.count) else 1


def _questions(path: Path | None, count: int) -> list[str]:
    if path is None:
        return list(prompt_sets(0, count, seed=PROBLEMS_SEED).held_out)
    return [json.loads(line)["question"] for line in path.read_text(encoding="utf-8").splitlines()[:count]]


def _with_tools(folder: Path, copy: Path) -> Path:
    """Links the model's files in `copy`, with a chat template that supports tools."""
    for path in folder.iterdir():
        if path.name != "chat_template.jinja":
            (copy / path.name).symlink_to(path.resolve())
    (copy / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    return copy


class _Requests:
    """Makes the engine's requests from bodies of chat requests, each of which asks one of the questions."""

    def __init__(self, engine: Engine, folder: Path, questions: Sequence[str], max_tokens: int) -> None:
        self.engine = engine
        self._tokenizer = Tokenizer.load(folder)
        self._grammars = GrammarCompiler(self._tokenizer, engine.eos_token_ids, trial_seconds=None)
        self._questions = questions
        self._max_tokens = max_tokens

    def parsed(self, number: int, options: Body) -> ParsedRequest:
        common = {"messages": messages(self._questions[number]), "temperature": 0, "max_tokens": self._max_tokens}
        max_seq_len = self.engine.max_seq_len
        parsed = parse_chat(common | options, tokenizer=self._tokenizer, max_seq_len=max_seq_len, default_seed=number)
        return parsed.compiled(self._grammars)

    def choice(self, parsed: ParsedRequest, completion: Completion) -> Body:
        """Returns the choice of the response that a server would send."""
        stream = AnswerStream(self._tokenizer)
        stream.push(completion.token_ids, None, completion.finish_reason)
        response = chat_completion(
            Head(response_id="", created=0, model="", seed=parsed.seed, limits=parsed.limits),
            [stream.answer()],
            num_prompt_tokens=parsed.num_prompt_tokens,
            num_cached_tokens=0,
            stats=completion.speculation,
            tokenizer=self._tokenizer,
            calls=parsed.calls,
        )
        choice: Body = response["choices"][0]
        return choice


def _compare_neighbours(requests: _Requests, rounds: int) -> None:
    """Effects: prints a line for each request of `BESIDE`."""
    measured = [{name: _decode_beside(requests, options) for name, options in BESIDE.items()} for _ in range(rounds)]
    for name in BESIDE:
        values = {
            "tokens_per_second_of_three": round(statistics.median(turn[name][0] for turn in measured), 1),
            "share_of_plain": round(statistics.median(turn[name][0] / turn["plain"][0] for turn in measured), 3),
            "sampling_ms_per_step": round(1000 * statistics.median(turn[name][1] for turn in measured), 3),
        }
        _print({"beside": name, "rounds": rounds} | values)


def _decode_beside(requests: _Requests, options: Body) -> tuple[float, float]:
    """Decodes three requests beside a fourth one, which has the given options.

    Returns: tokens per second of the three requests, and seconds per step in which the host samples.
    """
    engine = requests.engine
    for number in range(_CONCURRENCY):
        common = {"ignore_eos": True, "max_tokens": 2 * _NUM_STEPS}
        parsed = requests.parsed(number, common | (options if number == _CONCURRENCY - 1 else {}))
        engine.add(Request(str(number), parsed.prompt_token_ids, parsed.sampling))
    while engine.num_waiting or not all(sequence.is_decoding for sequence in engine.scheduler.running.values()):
        engine.step()
    sampling, started = engine.phase_seconds["sample"], time.perf_counter()
    for _ in range(_NUM_STEPS):
        engine.step()
    seconds, sampling = time.perf_counter() - started, engine.phase_seconds["sample"] - sampling
    for number in range(_CONCURRENCY):
        engine.cancel(str(number))
    while engine.has_work:
        engine.step()
    return (_CONCURRENCY - 1) * _NUM_STEPS / seconds, sampling / _NUM_STEPS


def _compare_drafters(requests: _Requests, count: int) -> bool:
    """Returns whether all answers are valid and equal. Effects: prints a line for each format and drafter."""
    is_good = True
    for name, options in FORMATS.items():
        plain: list[Body] = []
        for drafter, make_drafter in DRAFTERS.items():
            requests.engine.swap_drafter(make_drafter())
            answers, num_tokens, seconds = _answers(requests, options, count)
            plain = plain or answers
            num_valid = sum(map(_is_valid, answers))
            num_equal = sum(answer == expected for answer, expected in zip(answers, plain, strict=True))
            is_good &= num_valid == num_equal == count
            _print({"format": name, "drafter": drafter, "answers": count, "valid": num_valid, "equal": num_equal,
                    "tokens": num_tokens, "tokens_per_second": round(num_tokens / seconds, 1)})  # fmt: skip
    return is_good


def _answers(requests: _Requests, options: Body, count: int) -> tuple[list[Body], int, float]:
    """Returns the choices of all answers, their number of tokens, and the total time in seconds."""
    parsed = [requests.parsed(number, options) for number in range(count)]
    made = [
        Request(str(number), one.prompt_token_ids, one.sampling, memory="benchmark")
        for number, one in enumerate(parsed)
    ]
    requests.engine.scheduler.pool.forget_prefixes()
    started = time.perf_counter()
    completions = generate(requests.engine, made)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(completion.token_ids) for completion in completions)
    return [requests.choice(*pair) for pair in zip(parsed, completions, strict=True)], num_tokens, seconds


def _is_valid(choice: Mapping[str, Any]) -> bool:
    """Returns whether the answer, or the arguments of its only tool call, matches the schema `_SOLUTION`."""
    calls = choice["message"].get("tool_calls")
    text = calls[0]["function"]["arguments"] if calls else choice["message"]["content"]
    try:
        jsonschema.validate(json.loads(text), _SOLUTION)
    except (ValueError, jsonschema.ValidationError):
        return False
    return calls is None or (len(calls), calls[0]["function"]["name"]) == (1, "submit")


def _print(values: Body) -> None:
    print(json.dumps(values | {"load_average": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
