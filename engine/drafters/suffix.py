"""Suffix decoding: finds the request's last tokens in its own text and in past answers, and drafts what followed them.

Every earlier occurrence of the last tokens votes for the token that followed it; a longer match has more weight. Below
a node of the tree, only the occurrences that continued with the node's path vote, and their matches are longer by the
node's depth:

    share(token) = weight of the token's votes / (weight of all votes + 1)
    survival(node) = survival(parent) * rate(kind of the node)

The kind of a node consists of the number of matching tokens, the token's share, the sources of the occurrences, and
whether the temperature is above 0. `rate` is the observed acceptance rate of nodes of this kind. Nodes are grown best
first, and the maximum depth of a path depends on the length of the match.

Past answers and observed rates are stored in a memory, which is shared by the requests with the same `Request.memory`.
The gateway sets `Request.memory` to the caller's project, so that no project affects the drafts of another project. A
request without this field has its own memory, which ends with the request. The oldest answers of a memory are dropped
first. If there are more than MAX_MEMORIES memories, the least recently used memory is dropped. The output of a
preempted request is indexed at the preemption and again at the end, so it may vote twice.

Source: suffix decoding, Oliaro et al. 2024, arXiv:2411.04975; best-first growth as in JetSpec, arXiv:2606.18394.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from operator import itemgetter

from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Pass
from engine.drafters.record import Record
from engine.drafters.suffix_index import BREAK, LONGEST, SuffixIndex
from engine.sequence import Sequence

_MAX_DEPTH = 16
_DEPTH_FACTOR, _DEPTH_OFFSET = 1, 4  # maximum depth of a draft: 1 * matching tokens + 4
_PAST_TOKENS = 200_000
# output tokens for which a request's index has room; further tokens overwrite the beginning of the prompt
_MAX_OUTPUT = 4096
_WEIGHTS = {1: 1.0, 2: 4.0, 4: 16.0, 8: 64.0, 16: 256.0}  # weight of a vote by number of matching tokens
_PAST_WEIGHT = 0.5  # factor on the votes of past answers
_ASSUMED = 0.8  # assumed acceptance rate of a node, relative to the token's share
_MAX_LENGTH_BITS = 6  # kinds distinguish match lengths by bit length, up to this one: 32 tokens or more
_LEAST_SURVIVAL = 0.02

_Kind = tuple[int, int, int, bool]  # bit length of the match, share in tenths, source bits, temperature above 0
# matching tokens, continuation, source bit (1: this request, 2: past), weight
_Vote = tuple[int, Many[int], int, float]
_Claim = tuple[int, float, _Kind, list[_Vote]]  # token, rate, kind, votes for it


MAX_MEMORIES = 8  # each memory has room for _PAST_TOKENS tokens and takes 22 MB


@dataclass(slots=True)
class _Memory:
    """Data of past requests. past: an index of their texts; None: texts are not kept. record: acceptance rates."""

    past: SuffixIndex | None
    record: Record


@dataclass(frozen=True, slots=True)
class _Request:
    sequence: Sequence
    index: SuffixIndex
    memory: _Memory


class SuffixDrafter(Drafter):
    name = "suffix"
    max_depth = _MAX_DEPTH

    def __init__(self, *, past_tokens: int = _PAST_TOKENS) -> None:
        self._past_tokens = past_tokens
        self._requests: dict[str, _Request] = {}
        self._memories: OrderedDict[str, _Memory] = OrderedDict()  # least recently used first

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [self._propose(sequence, budget) for sequence in sequences]

    def observe(self, done: Pass) -> None:
        """Indexes prompts while they are prefilled, so that a long prompt does not delay the first draft."""
        for kept in done.kept:
            self._read(kept.sequence, kept.position + len(kept.rows))

    def forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        tokens = request.sequence.tokens
        memory = request.memory
        memory.record.settle(request_id, tokens)
        if memory.past is not None:
            start = max(0, len(request.sequence.request.prompt_token_ids) - LONGEST)
            memory.past.extend(tokens[start:])
            memory.past.extend((BREAK,))

    def forget_past(self) -> None:
        for memory in self._memories.values():
            memory.past = SuffixIndex(self._past_tokens)

    def _memory_of(self, name: str | None) -> _Memory:
        if name is None:
            return _Memory(None, Record())
        if name not in self._memories:
            if len(self._memories) == MAX_MEMORIES:
                self._memories.popitem(last=False)
            self._memories[name] = _Memory(SuffixIndex(self._past_tokens), Record())
        self._memories.move_to_end(name)
        return self._memories[name]

    def _read(self, sequence: Sequence, end: int) -> _Request:
        """Adds the request's tokens up to `end` to its index."""
        request_id = sequence.request.request_id
        request = self._requests.get(request_id)
        if request is None:
            capacity = len(sequence.tokens) + min(sequence.num_remaining, _MAX_OUTPUT)
            memory = self._memory_of(sequence.request.memory)
            request = self._requests[request_id] = _Request(sequence, SuffixIndex(capacity), memory)
        request.index.extend(sequence.tokens[request.index.num_tokens : end])
        return request

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        tokens = sequence.tokens
        request = self._read(sequence, len(tokens))
        past, record = request.memory.past, request.memory.record
        record.settle(sequence.request.request_id, tokens)
        context = tokens[-LONGEST:]
        votes = [(*match, 1, _WEIGHTS[match[0]]) for match in request.index.matches(context, _MAX_DEPTH)]
        if past is not None:
            found = past.matches(context, _MAX_DEPTH)
            votes += [(*match, 2, _WEIGHTS[match[0]] * _PAST_WEIGHT) for match in found]
        if not votes:
            return EMPTY_DRAFT
        votes.sort(key=itemgetter(0), reverse=True)
        draft, kinds = _grow(votes, sequence.request.sampling.temperature > 0.0, budget, record)
        record.claim(sequence.request.request_id, len(tokens), draft, kinds)
        return draft


def _grow(votes: list[_Vote], sampled: bool, budget: int, record: Record) -> tuple[Draft, list[_Kind]]:
    """Returns the likeliest nodes and their kinds, by best-first search over a heap of candidate nodes."""
    depth_limit = min(_MAX_DEPTH, _DEPTH_FACTOR * votes[0][0] + _DEPTH_OFFSET)
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    kinds: list[_Kind] = []
    heap: list[tuple[float, int, int, int, _Claim]] = []  # -survival, sequence number, depth, parent, claim
    parent_survival, depth, parent, num_offered = 1.0, 0, -1, 0
    while True:
        if depth < depth_limit:
            for claim in _claims(votes, depth, sampled, record):
                if parent_survival * claim[1] >= _LEAST_SURVIVAL:
                    heapq.heappush(heap, (-parent_survival * claim[1], num_offered, depth, parent, claim))
                    num_offered += 1
        if not heap or len(tokens) == budget:
            return Draft(tuple(tokens), tuple(parents), tuple(survival)), kinds
        negative, _, depth, popped_parent, (token, _, kind, votes) = heapq.heappop(heap)
        tokens.append(token)
        parents.append(popped_parent)
        survival.append(-negative)
        kinds.append(kind)
        parent_survival, depth, parent = -negative, depth + 1, len(tokens) - 1


def _claims(votes: list[_Vote], depth: int, sampled: bool, record: Record) -> Iterator[_Claim]:
    """Yields a claim for each token that a vote has at `depth` of its continuation.

    votes: sorted by the length of the match, longest first. Their fields are accessed by the indices of `_Vote`: 1 is
    the continuation, 2 the source and 3 the weight.
    """
    groups: dict[int, list[_Vote]] = {}
    total = 1.0  # the 1 in the formula of the share, so that a single vote has a share below 1
    for vote in votes:
        continuation = vote[1]
        if depth < len(continuation):
            total += vote[3]
            token = continuation[depth]
            if token in groups:
                groups[token].append(vote)
            else:
                groups[token] = [vote]
    groups.pop(BREAK, None)
    for token, token_votes in groups.items():
        weight, sources = 0.0, 0
        for vote in token_votes:
            weight += vote[3]
            sources |= vote[2]
        share = weight / total
        kind = (min((token_votes[0][0] + depth).bit_length(), _MAX_LENGTH_BITS), int(share * 10), sources, sampled)
        yield token, record.rate(kind, share * _ASSUMED), kind, token_votes
