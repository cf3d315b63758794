"""The check of a model that a customer registers: its perplexity on a fixed English text.

    perplexity = exp(mean over the tokens of -log p(token | the tokens before it))

A model whose weights are damaged, or read without their scales, loads and answers without an error; only its
predictions reveal the fault. `control.models.catalog.plausibility` judges the result.
"""

import math
from pathlib import Path

import torch

from engine.load import load_model
from engine.models.base import Model
from engine.tokenizer import Tokenizer
from workers.contracts import Finished, ModelCheckSpec
from workers.inference.loading import loading_failures

TEXT = """\
The harbour was quiet when Anna opened the window. A few fishing boats had already left, and the gulls followed them \
out past the lighthouse. She made coffee, sat down at the kitchen table and read the letter again. Her brother wrote \
that the old house would be sold in the spring, because nobody in the family had the time or the money to repair the \
roof. He asked whether she wanted to keep anything: the clock in the hall, the books, or the chairs that their \
grandfather had built. She thought about the summers they had spent there, the smell of the garden after the rain, \
and the long evenings on the steps in front of the door. Then she took a sheet of paper and began to write her answer. \
She would come in March, she said, and they should decide together what to do with the things that were left.
"""
_ROWS_PER_PASS = 64  # logits of a pass need 4 bytes for each row and entry of the vocabulary


def run_model_check(spec: ModelCheckSpec) -> Finished:
    with loading_failures():
        tokenizer = Tokenizer.load(Path(spec.model_dir))
        model = load_model(Path(spec.model_dir), device=spec.device)
    ids = tokenizer.encode(TEXT)
    read = ids[: model.max_positions]
    perplexity = text_perplexity(model, read)
    result = {
        "perplexity": perplexity if math.isfinite(perplexity) else None,
        "num_tokens": len(read) - 1,  # number of predicted tokens: the first one is not predicted
        # Bytes of text that were read, estimated from tokens: a model with a short context reads only the beginning.
        "num_bytes": len(TEXT.encode()) * len(read) // max(1, len(ids)),
    }
    return Finished(result=result, artifacts={})


@torch.inference_mode()
def text_perplexity(model: Model, token_ids: list[int]) -> float:
    """Returns the perplexity; infinity if there are fewer than two tokens, or if the predictions are not finite."""
    if len(token_ids) < 2:
        return math.inf
    ids = torch.tensor(token_ids, dtype=torch.int64, device=model.device)
    hidden, nats = model.hidden_states(ids[:-1]).final, 0.0
    for start in range(0, len(token_ids) - 1, _ROWS_PER_PASS):
        logits = model.logits(hidden[start : start + _ROWS_PER_PASS]).float()
        expected = ids[start + 1 : start + 1 + logits.shape[0]]
        nats += float(torch.nn.functional.cross_entropy(logits, expected, reduction="sum"))
    mean = nats / (len(token_ids) - 1)
    return math.exp(mean) if mean < math.log(1e300) else math.inf  # also for NaN
