"""Counts the tokens of a small file exactly, and estimates the tokens of a large file from every n-th row.

A tokenizer reads a few megabytes per second, whereas the validation of rows reads about a hundred. Tokenizing every row
would keep the caller waiting, although two significant digits of the number of tokens are enough.
"""

from control.workflows.datasets.reader import ModelReader

SAMPLE_BYTES = 2 << 20  # about this many bytes of a large file are tokenized


def sample_step(size_bytes: int) -> int:
    """Returns a step n for a file of this size: every n-th row of the file is tokenized."""
    return max(1, round(size_bytes / SAMPLE_BYTES))


def tokens_total(reader: ModelReader, *, every: int, num_bytes: int) -> int | None:
    """Returns the number of tokens, or None if the model has no tokenizer that can be read on this machine.

    Args:
        reader: has received every n-th row, where n is `every`.
        num_bytes: the bytes of all valid rows.
    Raises: ApiError: 400, tokenizing takes too long.
    """
    readings = reader.readings()
    if readings is None:
        return None
    (sums,) = readings
    is_exact = every == 1 or not sums["num_bytes"]
    return int(sums["num_tokens"]) if is_exact else round(sums["num_tokens"] * num_bytes / sums["num_bytes"])
