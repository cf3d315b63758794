"""Judges whether a model's perplexity on the fixed English text is that of a language model.

Perplexity per token depends on the tokenizer, so the bound is on bits per byte of text, which does not:

    bits per byte = log2(perplexity) * tokens / bytes

| model | bits per byte |
|---|---|
| SmolLM2-135M, with perplexity 21.5 | 0.95 |
| one that knows only how often each word occurs | about 2.2 |
| guesses among 49,152 tokens of 4.5 bytes | 3.5 |
| guesses among bytes | 8 |

Random weights, and weights that are read without their scales, are no better than guesses.
"""

MIN_TOKENS = 32  # from fewer predictions a perplexity means little; the text has about 700 bytes


def implausibility(
    *, perplexity: float | None, num_tokens: int, num_bytes: int, max_bits_per_byte: float
) -> str | None:
    """Returns why the model is refused, for the customer, or None.

    Args:
        perplexity: None: it is infinite or not a number.
        num_tokens: number of predicted tokens.
        num_bytes: of the text that these tokens encode.
    """
    if num_tokens < MIN_TOKENS:
        return (
            f"the tokenizer and the context of the model leave {num_tokens} tokens of an English text of {num_bytes} "
            f"bytes; at least {MIN_TOKENS} are needed to check the model"
        )
    limit = 2 ** (max_bits_per_byte * num_bytes / num_tokens)
    if perplexity is not None and perplexity <= limit:
        return None
    got = "not a finite number" if perplexity is None else f"{perplexity:,.1f}"
    return (
        f"the model's perplexity on an English text is {got}; at most {limit:,.1f} is plausible for a language model "
        "with this tokenizer: the weights may be damaged, or saved in a format that was read wrongly"
    )
