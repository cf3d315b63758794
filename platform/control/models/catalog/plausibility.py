"""Judges whether a model's perplexity on a fixed English text is plausible for a language model.

Perplexity per token depends on the tokenizer. The bound therefore applies to bits per byte of text, which do not depend
on the tokenizer:

    bits per byte = log2(perplexity) * tokens / bytes

| model | bits per byte |
|---|---|
| SmolLM2-135M, with perplexity 21.5 | 0.95 |
| a unigram model, which knows only how often each word occurs | about 2.2 |
| uniform guesses among 49,152 tokens with 4.5 bytes on average | 3.5 |
| uniform guesses among the 256 byte values | 8 |

Random weights, and weights that are read without their scales, are no better than guesses.
"""

MIN_TOKENS = 32  # a perplexity of fewer predictions is too uncertain; ordinary tokenizers make over 100 tokens


def implausibility(
    *, perplexity: float | None, num_tokens: int, num_bytes: int, max_bits_per_byte: float
) -> str | None:
    """Returns the reason to refuse the model, worded for the customer; None if its perplexity is plausible.

    Args:
        perplexity: None if it is infinite or not a number.
        num_tokens: number of predicted tokens.
        num_bytes: length of the text that these tokens encode.
        max_bits_per_byte: a model with more bits per byte is refused.
    """
    if num_tokens < MIN_TOKENS:
        return (
            f"only {num_tokens} tokens of the English test text of {num_bytes} bytes could be scored with the model's "
            f"tokenizer and context length; at least {MIN_TOKENS} are needed to check the model"
        )
    limit = 2 ** (max_bits_per_byte * num_bytes / num_tokens)
    if perplexity is not None and perplexity <= limit:
        return None
    got = "not a finite number" if perplexity is None else f"{perplexity:,.1f}"
    return (
        f"the model's perplexity on an English text is {got}; at most {limit:,.1f} is plausible for a language model "
        "with this tokenizer: the weights may be damaged, or saved in a format that was read wrongly"
    )
