"""Finds earlier occurrences of the last tokens of a text, like the match finder of LZ77, but over token ids.

A context is the last 1, 2, 4, 8 or 16 tokens before a position. The positions after contexts with equal hashes form a
chain, latest first: `head` maps a context's hash to its latest position, and `prev` maps a position to the previous one
of the chain. Adding a token takes a constant number of writes, and a lookup visits a bounded number of positions. The
text is a ring buffer: once it is full, its oldest tokens are overwritten. The hash of 2 n tokens is computed from two
hashes of n tokens.

Memory per token: 4 bytes, and 16 bytes for each of the five context lengths, in total 84 bytes, allocated at once.

Source: hash chains as in zlib's deflate, instead of the suffix trees of suffix decoding (Oliaro et al. 2024,
arXiv:2411.04975).
"""

from array import array
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Many

CONTEXTS = (1, 2, 4, 8, 16)  # lengths in tokens; each is twice the previous one
LONGEST = CONTEXTS[-1]
MAX_CONTINUATION = 48
BREAK = -1  # separates texts
_TAIL = MAX_CONTINUATION + LONGEST  # number of first tokens that are repeated after the ring's end
_MULTIPLIER = 0x9E3779B1
_MASK = 0xFFFFFFFF
_VISITS = 16  # positions visited per context length
ENOUGH = 8  # after this many matches, shorter contexts are not looked up


# (number of matching tokens, the tokens that followed them: at least one, and possibly a BREAK among them)
Match = tuple[int, Many[int]]


class SuffixIndex:
    """An index of a text. It has room for at least `capacity` tokens; further tokens overwrite the oldest."""

    def __init__(self, capacity: int) -> None:
        self._size = max(_TAIL, 1 << max(0, capacity - 1).bit_length())
        self._tokens = array("i", (BREAK,)) * (self._size + _TAIL)
        self._heads = [array("q", (-1,)) * self._size for _ in CONTEXTS]
        self._prevs = [array("q", (-1,)) * self._size for _ in CONTEXTS]
        self._hashes = [deque([0] * n, maxlen=n) for n in CONTEXTS]  # the last n hashes of contexts of n tokens
        self.num_tokens = 0  # number of tokens added so far

    def extend(self, tokens: Iterable[int]) -> None:
        mask, ring, position = self._size - 1, self._tokens, self.num_tokens
        levels = list(zip(self._hashes, self._heads, self._prevs, strict=True))
        for token in tokens:
            ring[position & mask] = token
            if position & mask < _TAIL:  # repeated after the end, so that slices of the ring do not wrap
                ring[self._size + (position & mask)] = token
            position += 1
            code = token & _MASK
            for hashes, head, prev in levels:
                before = hashes[0]  # hash of the n tokens before the last n; both give the hash of 2 n tokens
                hashes.append(code)
                prev[position & mask] = head[code & mask]
                head[code & mask] = position
                code = (before * _MULTIPLIER + (code ^ (code >> 15))) & _MASK
        self.num_tokens = position

    def matches(self, last_tokens: Many[int], depth: int, *, enough: int = ENOUGH) -> list[Match]:
        """Returns matches with up to `depth` following tokens: longest contexts first, and for each length
        the latest match first.

        Shorter contexts are not looked up once `enough` matches are found.
        """
        matches: list[Match] = []
        matched_positions = set()
        mask, ring = self._size - 1, self._tokens
        oldest = self.num_tokens - self._size
        context = array("i", last_tokens[-LONGEST:])
        codes = _codes(context)
        for level in range(len(codes) - 1, -1, -1):
            length, prev = CONTEXTS[level], self._prevs[level]
            suffix = context[-length:]
            position = self._heads[level][codes[level] & mask]
            for _ in range(_VISITS):
                start = position - length
                if start < oldest or start < 0:
                    break
                if position < self.num_tokens and position not in matched_positions:
                    start &= mask
                    if ring[start : start + length] == suffix:
                        matched_positions.add(position)
                        end = min(depth, self.num_tokens - position)
                        matches.append((length, ring[position & mask : (position & mask) + end]))
                position = prev[position & mask]
            if len(matches) >= enough:
                break
        return matches


def _codes(context: "array[int]") -> list[int]:
    """Returns the hashes of the last 1, 2, 4, ... tokens, up to the length of the context."""
    row = [token & _MASK for token in context]
    codes = [row[-1]] if row else []
    for length in CONTEXTS[1:]:
        if len(context) < length:
            break
        row = row[len(row) % 2 :]  # an even number of hashes, so that the last pair ends at the last token
        row = [
            (before * _MULTIPLIER + (code ^ (code >> 15))) & _MASK
            for before, code in zip(row[::2], row[1::2], strict=True)
        ]
        codes.append(row[-1])
    return codes
