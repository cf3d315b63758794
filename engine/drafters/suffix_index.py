"""Where the last tokens of a text stood before: the match finder of LZ77, over token ids.

For contexts of 1, 2, 4, 8 and 16 tokens, the places that follow equal ones form a chain, latest first: `head` leads
from a context's hash to its latest place, `prev` from a place to the one before. Adding a token costs a few writes
whatever was added before, a look-up visits a bounded number of places, and the text is a ring: once it is full, its
oldest tokens are overwritten. The hash of 2 n tokens is made of two hashes of n.

Memory: 4 bytes a token and 16 for each of the five lengths: 84 together, laid out at once.

Source: hash chains as in zlib's deflate, where suffix decoding (Oliaro et al. 2024, arXiv:2411.04975) has suffix trees.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Many

CONTEXTS = (1, 2, 4, 8, 16)  # tokens; each twice the one before
LONGEST = CONTEXTS[-1]
MAX_CONTINUATION = 48
BREAK = -1  # stands between texts
_TAIL = MAX_CONTINUATION + LONGEST  # so many of the ring's first tokens stand again behind its last: no slice wraps
_MULTIPLIER = 0x9E3779B1
_MASK = 0xFFFFFFFF
_VISITS = 16  # places looked at per length of context
ENOUGH = 8  # places after which shorter contexts are left alone


# (tokens known to be equal, what stands after them): the latter is never empty and may hold a BREAK.
Match = tuple[int, Many[int]]


class SuffixIndex:
    """A text of at least `capacity` tokens; more than that drive the oldest out."""

    def __init__(self, capacity: int) -> None:
        self._size = max(_TAIL, 1 << max(0, capacity - 1).bit_length())
        self._tokens = array("i", (BREAK,)) * (self._size + _TAIL)
        self._heads = [array("q", (-1,)) * self._size for _ in CONTEXTS]
        self._prevs = [array("q", (-1,)) * self._size for _ in CONTEXTS]
        self._hashes = [deque([0] * n, maxlen=n) for n in CONTEXTS]  # the last n hashes of n tokens
        self.num_tokens = 0  # ever added

    def extend(self, tokens: Iterable[int]) -> None:
        mask, ring, place = self._size - 1, self._tokens, self.num_tokens
        levels = list(zip(self._hashes, self._heads, self._prevs, strict=True))
        for token in tokens:
            ring[place & mask] = token
            if place & mask < _TAIL:
                ring[self._size + (place & mask)] = token
            place += 1
            code = token & _MASK
            for hashes, head, prev in levels:
                before = hashes[0]
                hashes.append(code)
                prev[place & mask] = head[code & mask]
                head[code & mask] = place
                code = (before * _MULTIPLIER + (code ^ (code >> 15))) & _MASK
        self.num_tokens = place

    def matches(self, last_tokens: Many[int], depth: int, *, places: int = ENOUGH) -> list[Match]:
        """Of the longest contexts first, of equal ones the latest; each with up to `depth` tokens after it.

        Shorter contexts are left alone once `places` are found.
        """
        found: list[Match] = []
        seen = set()
        mask, ring = self._size - 1, self._tokens
        oldest = self.num_tokens - self._size
        context = array("i", last_tokens[-LONGEST:])
        codes = _codes(context)
        for level in range(len(codes) - 1, -1, -1):
            length, prev = CONTEXTS[level], self._prevs[level]
            wanted = context[-length:]
            place = self._heads[level][codes[level] & mask]
            for _ in range(_VISITS):
                start = place - length
                if start < oldest or start < 0:
                    break
                if place < self.num_tokens and place not in seen:
                    start &= mask
                    if ring[start : start + length] == wanted:
                        seen.add(place)
                        end = min(depth, self.num_tokens - place)
                        found.append((length, ring[place & mask : (place & mask) + end]))
                place = prev[place & mask]
            if len(found) >= places:
                break
        return found


def _codes(context: "array[int]") -> list[int]:
    """Hashes of the last 1, 2, 4, ... tokens, as far as the context reaches."""
    row = [token & _MASK for token in context]
    codes = [row[-1]] if row else []
    for length in CONTEXTS[1:]:
        if len(context) < length:
            break
        row = row[len(row) % 2 :]
        row = [
            (before * _MULTIPLIER + (code ^ (code >> 15))) & _MASK
            for before, code in zip(row[::2], row[1::2], strict=True)
        ]
        codes.append(row[-1])
    return codes
