"""Clients of OpenAI's and Anthropic's APIs work unchanged with a live endpoint, each in its own environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.loop import Engine
from engine.request import Request, SamplingParams, StepOutput, TokenLogprob
from engine.tokenizer import Tokenizer
from tests.clients.conftest import Outcome
from tests.clients.environments import CLIENTS, Client, NotInstallableError
from tests.clients.script_docs import read_script

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]  # the first test of a client installs it

CASES = [
    pytest.param(client, check, id=f"{client.name}-{check.removeprefix('check_')}")
    for client in CLIENTS
    for check in read_script(client).checks
]


@pytest.mark.parametrize(("client", "check"), CASES)
def test_the_unchanged_client_works(
    client: Client,
    check: str,
    outcomes: Callable[[Client], dict[str, Outcome]],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("case", (client.name, check))
    try:
        outcome = outcomes(client)[check]
    except NotInstallableError as error:
        pytest.skip(f"{client.requirements[0]} cannot be installed here: {error}")
    assert outcome.error is None, outcome.error


def test_the_log_likelihoods_of_lm_eval_equal_the_engines_own(
    outcomes: Callable[[Client], dict[str, Outcome]], model_dir: Path
) -> None:
    (lm_eval,) = (client for client in CLIENTS if client.name == "lm-eval")
    try:
        measured = outcomes(lm_eval)["check_loglikelihood"].value
    except NotInstallableError as error:
        pytest.skip(str(error))
    engine = load_engine(model_dir, config=EngineConfig(device="cpu"))
    tokenizer = Tokenizer.load(model_dir)
    expected = [
        [text, next_text, *log_likelihood(engine, tokenizer, text, next_text)] for text, next_text, *_ in measured
    ]

    assert len(measured) == 7  # one request for each choice of the script's three questions
    assert measured == expected


def log_likelihood(engine: Engine, tokenizer: Tokenizer, context: str, continuation: str) -> tuple[float, bool]:
    """Returns the sum of the log-probabilities of the continuation's tokens, and whether they are the greedy answer."""
    found: list[TokenLogprob] = []

    def keep(output: StepOutput) -> None:
        found.extend(output.prompt_logprobs or ())

    prompt = tuple(tokenizer.encode(context + continuation))
    sampling = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=1, prompt_logprobs=True)
    generate(engine, [Request("scored", prompt, sampling)], on_output=keep)
    scored = found[len(tokenizer.encode(context)) - 1 :]
    return sum(token.logprob for token in scored), all(token.logprob == token.top[0][1] for token in scored)
