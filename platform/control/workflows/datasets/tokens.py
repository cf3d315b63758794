"""Counts the tokens of a small file exactly, and estimates the tokens of a large file from every n-th row.

A tokenizer reads a few megabytes per second, row validation about a hundred. Tokenizing every row would keep the caller
waiting, although two significant digits of the number of tokens are enough.
"""

from control.workflows.datasets.formats import Example
from control.workflows.datasets.reader import ModelReader
from control.workflows.prompt_files.lines import Line

SAMPLE_BYTES = 2 << 20  # about so many bytes of a large file are tokenized


class TokenCounter:
    def __init__(self, reader: ModelReader, *, size_bytes: int) -> None:
        """Args: size_bytes: size of the whole file."""
        self._reader = reader
        self._every = max(1, round(size_bytes / SAMPLE_BYTES))  # n: every n-th row is sent to the reader
        self._num_seen = 0
        self._bytes_seen = 0
        self._sampled_bytes: list[int] = []  # size of each row that was sent to the reader

    @property
    def is_exact(self) -> bool:
        return self._every == 1

    def add(self, example: Example, line: Line) -> None:
        self._num_seen += 1
        self._bytes_seen += line.size_bytes
        if (self._num_seen - 1) % self._every == 0:
            self._reader.send(example)
            self._sampled_bytes.append(line.size_bytes)

    def total(self) -> int | None:
        """The number of tokens, or None if the model has no tokenizer that can be read on this machine.

        Raises: ApiError: 400, tokenizing takes too long.
        """
        readings = self._reader.readings()
        if readings is None:
            return None
        # A row that the template refuses has no tokens; the preview shows the reason.
        rendered = [pair for pair in zip(readings, self._sampled_bytes, strict=True) if pair[0]["error"] is None]
        num_tokens = sum(int(reading["num_tokens"]) for reading, _ in rendered)
        num_bytes = sum(size for _, size in rendered)
        return num_tokens if self.is_exact or not num_bytes else round(num_tokens * self._bytes_seen / num_bytes)
