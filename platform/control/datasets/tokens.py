"""How many tokens a file holds: exactly for a small one, from every n-th row of a large one.

A tokenizer reads some megabytes a second, a validator a hundred: counting everything would make the file's owner wait
for a number of which two digits matter.
"""

from control.api.errors import ApiError
from control.batches.lines import Line
from control.datasets.formats import Example
from control.datasets.rendering import Renderer

SAMPLE_BYTES = 2 << 20


class TokenCounter:
    def __init__(self, renderer: Renderer, *, size_bytes: int) -> None:
        """Args: size_bytes: of the whole file."""
        self._renderer = renderer
        self._every = max(1, round(size_bytes / SAMPLE_BYTES))
        self._num_seen = 0
        self._bytes_seen = 0
        self._bytes_counted = 0
        self._tokens_counted = 0

    @property
    def is_exact(self) -> bool:
        return self._every == 1

    def see(self, example: Example, line: Line) -> None:
        self._num_seen += 1
        self._bytes_seen += line.size_bytes
        if (self._num_seen - 1) % self._every:
            return
        try:
            encoded = self._renderer.encode(self._renderer.render(example))
        except ApiError:  # the template refuses it: the preview says why, and the row has no tokens
            return
        self._bytes_counted += line.size_bytes
        self._tokens_counted += sum(len(part.ids) for part in encoded)

    def total(self) -> int:
        if self.is_exact or not self._bytes_counted:
            return self._tokens_counted
        return round(self._tokens_counted * self._bytes_seen / self._bytes_counted)
