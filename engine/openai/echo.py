"""Puts the prompt in front of an answer, for text completions with `echo`.

OpenAI gives the first token of a prompt no log-probability, because nothing precedes it. Evaluation harnesses compute
the likelihood of a given answer from the log-probabilities of the prompt's last tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from engine.openai.answer import Answer, AnswerLogprob
from engine.request import TokenLogprob
from engine.text import TextStream
from engine.tokenizer import Tokenizer


def echoed(
    answer: Answer, prompt: Sequence[int], prompt_logprobs: Sequence[TokenLogprob] | None, tokenizer: Tokenizer
) -> Answer:
    """Returns the answer with the prompt's text and log-probabilities in front.

    Args:
        prompt_logprobs: log-probabilities of prompt[1:]; None if they were not requested.
    """
    stream = TextStream(tokenizer, per_token=True)
    text = stream.push(prompt) + stream.finish()
    if answer.logprobs is None:
        return replace(answer, text=text + answer.text)
    assert prompt_logprobs is not None
    first = TokenLogprob(prompt[0], math.nan, ())
    entries = zip([first, *prompt_logprobs], stream.token_starts, strict=True)
    before = tuple(AnswerLogprob(token, start) for token, start in entries)
    after = tuple(replace(entry, text_offset=entry.text_offset + len(text)) for entry in answer.logprobs)
    return replace(answer, text=text + answer.text, logprobs=before + after)
