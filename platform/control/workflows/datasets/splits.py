"""Decides which split of a dataset a row belongs to: by the hash of its prompt, or by a label in the row."""

import hashlib
import re
from collections.abc import Mapping

from control.workflows.datasets.formats import Example
from control.workflows.prompt_files.child import FileRefused
from control.workflows.prompt_files.lines import Line
from control.workflows.prompt_files.rows import parse_object, quoted
from control.workflows.prompt_files.sketches import prompt_key

MAX_SPLITS = 16
SPLIT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$"
_TOLERANCE = 1e-9  # allowed error of the sum of shares, because shares are floating-point numbers
_POINTS = 1 << 64


class Shares:
    """Splits by shares: the hash of seed and prompt is a point in [0, 1), and each split owns an interval of [0, 1).

    The split of a prompt depends on nothing else, so a prompt stays in its split in later versions of the dataset, and
    equal prompts are in one split. The order of the names in `shares` does not matter.
    """

    def __init__(self, seed: int, shares: Mapping[str, float]) -> None:
        """Args: shares: positive numbers with a sum of at most 1. If it is less, some rows belong to no split."""
        self._seed = str(seed).encode()
        self._ends: list[tuple[float, str]] = []
        end = 0.0
        for name in sorted(shares):
            end += shares[name]
            self._ends.append((end, name))
        if abs(end - 1) < _TOLERANCE:
            self._ends[-1] = (1.0, self._ends[-1][1])

    def __call__(self, example: Example, line: Line) -> str | None:
        return self.split_of(prompt_key(example.body))

    def split_of(self, key: bytes) -> str | None:
        digest = hashlib.blake2b(key, digest_size=8, key=self._seed).digest()
        point = int.from_bytes(digest, "little")
        return next((name for end, name in self._ends if point < end * _POINTS), None)


class LabelSplit:
    """Splits by the value of a member of the rows."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._names: set[str] = set()

    def __call__(self, example: Example, line: Line) -> str:
        """Raises: FileRefused: the row has no usable label, or there are too many labels."""
        value = parse_object(line.content or b"").get(self._label)
        if not isinstance(value, str) or re.fullmatch(SPLIT_PATTERN, value) is None:
            message = f"line {line.number}: {self._label[:64]!a} must be the name of a split, got {quoted(value)}"
            raise FileRefused("invalid_label", message)
        if value not in self._names and len(self._names) == MAX_SPLITS:
            raise FileRefused("too_many_labels", f"line {line.number}: there are more than {MAX_SPLITS} labels")
        self._names.add(value)
        return value
