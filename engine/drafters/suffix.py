"""Suffix decoding: a tree of what followed the same last tokens, in this request and in past answers.

Every place that follows the same tokens votes for what stands there, more the more tokens agree. At a node of the tree
vote the places that went the node's way, whose agreement the node's depth makes longer:

    share(token) = votes for it / (all votes + 1)        survival(node) = survival(parent) * rate(kind of claim)

where the kind is the number of agreeing tokens, the share, where the places lie and whether the request samples; `rate`
is the part of such claims that came true so far. Nodes are grown best first; a path may be as long as the agreement
allows.

Past answers are kept for all requests together: a process serves one deployment, so they are of one customer. They are
bounded: the oldest go first. A request that was preempted votes twice with what it had answered by then, no more.

Source: suffix decoding, Oliaro et al. 2024, arXiv:2411.04975; the tree's order is that of JetSpec, arXiv:2606.18394.
"""

import heapq
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
_DEPTH_FACTOR, _DEPTH_OFFSET = 1, 4  # a path is at most 1 * agreeing tokens + 4 long
_PAST_TOKENS = 200_000
_OWN_ANSWER = 4096  # room in a request's index for its answer; a longer one drives the prompt's start out
_WEIGHTS = {1: 1.0, 2: 4.0, 4: 16.0, 8: 64.0, 16: 256.0}  # of a vote, by agreeing tokens
_PAST_WEIGHT = 0.5  # of a past answer's vote
_ASSUMED = 0.8  # rate of a claim per share, while none of its kind was seen
_LEVELS = 6  # of agreement, by bit length: 1, 2, 4, 8, 16, 32 tokens or more
_LEAST_SURVIVAL = 0.02

_Kind = tuple[int, int, int, bool]
_Vote = tuple[int, Many[int], int, float]  # agreeing tokens, continuation, source (1: this request, 2: past), weight
_Claim = tuple[int, float, _Kind, list[_Vote]]  # token, rate, kind, votes for it


@dataclass(frozen=True, slots=True)
class _Request:
    sequence: Sequence
    index: SuffixIndex


class SuffixDrafter(Drafter):
    name = "suffix"
    max_depth = _MAX_DEPTH

    def __init__(self, *, past_tokens: int = _PAST_TOKENS) -> None:
        self._past_tokens = past_tokens
        self._requests: dict[str, _Request] = {}
        self._record = Record()
        self.forget_past()

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [self._propose(sequence, budget) for sequence in sequences]

    def observe(self, done: Pass) -> None:
        """Prompts are indexed as they are read, so that a long one does not hold up the first draft."""
        for kept in done.kept:
            self._read(kept.sequence, kept.position + len(kept.rows))

    def forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        tokens = request.sequence.tokens
        self._record.settle(request_id, tokens)
        start = max(0, len(request.sequence.request.prompt_token_ids) - LONGEST)
        self._past.extend(tokens[start:])
        self._past.extend((BREAK,))

    def forget_past(self) -> None:
        self._past = SuffixIndex(self._past_tokens)

    def _read(self, sequence: Sequence, end: int) -> _Request:
        """Brings the request's index up to `end` tokens."""
        request_id = sequence.request.request_id
        request = self._requests.get(request_id)
        if request is None:
            capacity = len(sequence.tokens) + min(sequence.num_remaining, _OWN_ANSWER)
            request = self._requests[request_id] = _Request(sequence, SuffixIndex(capacity))
        request.index.extend(sequence.tokens[request.index.num_tokens : end])
        return request

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        tokens = sequence.tokens
        request = self._read(sequence, len(tokens))
        self._record.settle(sequence.request.request_id, tokens)
        context = tokens[-LONGEST:]
        votes = [(*match, 1, _WEIGHTS[match[0]]) for match in request.index.matches(context, _MAX_DEPTH)]
        past = self._past.matches(context, _MAX_DEPTH)
        votes += [(*match, 2, _WEIGHTS[match[0]] * _PAST_WEIGHT) for match in past]
        if not votes:
            return EMPTY_DRAFT
        votes.sort(key=itemgetter(0), reverse=True)
        draft, kinds = self._grow(votes, sequence.request.sampling.temperature > 0.0, budget)
        self._record.claim(sequence.request.request_id, len(tokens), draft, kinds)
        return draft

    def _grow(self, votes: list[_Vote], sampled: bool, budget: int) -> tuple[Draft, list[_Kind]]:
        """The likeliest nodes. After a node come its children, so the heap holds all that can be next."""
        deepest = min(_MAX_DEPTH, _DEPTH_FACTOR * votes[0][0] + _DEPTH_OFFSET)
        tokens: list[int] = []
        parents: list[int] = []
        survival: list[float] = []
        kinds: list[_Kind] = []
        heap: list[tuple[float, int, int, int, _Claim]] = []  # -survival, running number, depth, parent, claim
        above, depth, parent, offered = 1.0, 0, -1, 0
        while True:
            if depth < deepest:
                for claim in self._claims(votes, depth, sampled):
                    if above * claim[1] >= _LEAST_SURVIVAL:
                        heapq.heappush(heap, (-above * claim[1], offered, depth, parent, claim))
                        offered += 1
            if not heap or len(tokens) == budget:
                return Draft(tuple(tokens), tuple(parents), tuple(survival)), kinds
            negative, _, depth, own_parent, (token, _, kind, votes) = heapq.heappop(heap)
            tokens.append(token)
            parents.append(own_parent)
            survival.append(-negative)
            kinds.append(kind)
            above, depth, parent = -negative, depth + 1, len(tokens) - 1

    def _claims(self, votes: list[_Vote], depth: int, sampled: bool) -> Iterator[_Claim]:
        """What the votes, most agreement first, say of the token `depth` places on."""
        groups: dict[int, list[_Vote]] = {}
        total = 1.0
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
        for token, own in groups.items():
            weight, sources = 0.0, 0
            for vote in own:
                weight += vote[3]
                sources |= vote[2]
            share = weight / total
            kind = (min((own[0][0] + depth).bit_length(), _LEVELS), int(share * 10), sources, sampled)
            yield token, self._record.rate(kind, share * _ASSUMED), kind, own
