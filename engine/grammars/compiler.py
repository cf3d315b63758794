"""Compiles grammars for one tokenizer with xgrammar and caches them. Tracks the state of answers in their grammars.

A grammar that is not cached is first tried in a separate process (engine/grammars/trial.py), then compiled and cached.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import xgrammar
from numpy.typing import NDArray

from engine.errors import GrammarTooSlow
from engine.fields import InvalidRequest
from engine.grammars.grammar import Constraint, Grammar
from engine.grammars.trial import GrammarTrial
from engine.grammars.xgrammar_compile import compile_source, new_compiler
from engine.tokenizer import Tokenizer

CACHE_BYTES = 256 << 20
TRIAL_SECONDS = 3
_ENTRY_BYTES = 4096  # assumed overhead of a cache entry
_SLOW_SECONDS = 1.0  # CPU time limit for one token; the trial refuses grammars that take a tenth of this already


class EndTokens(Protocol):
    """The part of `engine.loop.Engine` that a compiler needs."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...


def compiler_for(engine: EndTokens, tokenizer: Tokenizer) -> "GrammarCompiler":
    """Returns a compiler for requests to this engine.

    A grammar must end with the tokens at which the engine ends an answer; the tokenizer may name other end tokens.
    """
    return GrammarCompiler(tokenizer, engine.eos_token_ids)


class GrammarCompiler:
    """Thread-safe. One grammar is compiled at a time; requests with cached grammars do not wait."""

    def __init__(
        self, tokenizer: Tokenizer, eos_token_ids: frozenset[int], *, trial_seconds: int | None = TRIAL_SECONDS
    ) -> None:
        """
        Args:
            eos_token_ids: tokens that end an answer in the engine; see `compiler_for`.
            trial_seconds: CPU time limit of a grammar's trial; None: grammars are trusted and compiled without a trial.
        """
        self._tokenizer = tokenizer
        self._eos_token_ids = sorted(token for token in eos_token_ids if token < tokenizer.vocab_size)
        self._trial_seconds = trial_seconds
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._trial: GrammarTrial | None = None
        self._usable: list[bool] = []  # [token]: whether any grammar may allow the token
        self._cache = _Cache()
        self._compiling = threading.Lock()

    def compile(self, grammar: Grammar, *, param: str | None = None) -> Grammar:
        """Returns the grammar with `compiled` set. This may take seconds, so it must not run in the engine's thread.

        Args:
            param: the request parameter that error messages name.

        Raises: InvalidRequest: the grammar is malformed, not supported, unsatisfiable, or takes too long.
        """
        result = self._cache.get(grammar)
        if result is None:
            with self._compiling:
                result = self._cache.get(grammar) or self._compile(grammar)
        if isinstance(result, str):
            raise InvalidRequest(f"the {grammar.kind.value} {result}", param=param, code="invalid_grammar")
        return replace(grammar, compiled=result)

    def close(self) -> None:
        """Ends the trial process; the next grammar starts a new one."""
        with self._compiling:
            if self._trial is not None:
                self._trial.close()

    def _compile(self, grammar: Grammar) -> "_Compiled | str":
        if self._compiler is None:
            if not self._eos_token_ids:
                return "needs a model with an end-of-sequence token, and this one has none"
            vocabulary = self._tokenizer.vocabulary()
            self._usable = [bool(text) or token in self._eos_token_ids for token, text in enumerate(vocabulary)]
            self._compiler = new_compiler(vocabulary, self._eos_token_ids)
            if self._trial_seconds is not None:
                self._trial = GrammarTrial(vocabulary, self._eos_token_ids, cpu_seconds=self._trial_seconds)
        kind = grammar.kind.value
        result: _Compiled | str | None = self._trial.find_error(kind, grammar.source) if self._trial else None
        if result is None:
            try:
                compiled = compile_source(self._compiler, kind, grammar.source)
                result = _Compiled(compiled, self._usable, self._eos_token_ids)
            except ValueError as error:
                result = str(error)
        self._cache.put(grammar, result)
        return result


class _Compiled:
    def __init__(self, compiled: xgrammar.CompiledGrammar, usable: list[bool], eos_token_ids: list[int]) -> None:
        self._compiled = compiled
        self._usable = usable
        self._eos_token_ids = eos_token_ids

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def start(self) -> Constraint:
        return _Constraint(xgrammar.GrammarMatcher(self._compiled), self._usable, self._eos_token_ids)


class _Constraint:
    def __init__(self, matcher: xgrammar.GrammarMatcher, usable: list[bool], eos_token_ids: list[int]) -> None:
        self._matcher = matcher
        self._vocab_size = len(usable)
        self._bits = xgrammar.allocate_token_bitmask(1, self._vocab_size)
        self._usable = usable
        self._eos_token_ids = eos_token_ids
        self._accepted: list[int] = []
        self._is_violated = False  # the grammar excludes an accepted token, so only the end of the answer is allowed

    @property
    def num_accepted(self) -> int:
        return len(self._accepted)

    def follow(self, answer: Sequence[int]) -> None:
        if self._accepted == answer:
            return
        self._matcher.reset()
        self._accepted, self._is_violated = [], False
        for token in answer:
            self.accept(token)

    def allowed(self) -> NDArray[np.bool_]:
        started = time.thread_time()
        ended = self._is_violated or self._matcher.is_terminated()
        if not ended:
            self._matcher.fill_next_token_bitmask(self._bits)
        if time.thread_time() - started > _SLOW_SECONDS:
            raise GrammarTooSlow(f"the grammar takes more than {_SLOW_SECONDS:g} s for a token: it is too ambiguous")
        bits = np.unpackbits(self._bits[0].numpy().view(np.uint8), count=self._vocab_size, bitorder="little")
        if ended or not bits.any():
            bits = np.zeros(self._vocab_size, np.uint8)
            bits[self._eos_token_ids] = 1
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        self._accepted.append(token)
        if not self._is_violated and not self._matcher.is_terminated():
            self._is_violated = not self._matcher.accept_token(token)

    def allowed_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            children.setdefault(parent, []).append(node)
        return [] if self._is_violated else sorted(self._allowed_below(-1, tokens, children))

    def _allowed_below(self, parent: int, tokens: Sequence[int], children: dict[int, list[int]]) -> list[int]:
        allowed_nodes: list[int] = []
        for node in children.get(parent, ()) if not self._matcher.is_terminated() else ():
            token = tokens[node]
            # the matcher would log a warning for any other token
            possible = token < self._vocab_size and self._usable[token]
            if possible and self._matcher.accept_token(token):  # takes 1 us; a draft row takes 1 ms
                allowed_nodes += [node, *self._allowed_below(node, tokens, children)]
                self._matcher.rollback(1)
        return allowed_nodes


class _Cache:
    """Stores the most recently used compiled grammars, up to CACHE_BYTES; for invalid grammars, their error."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Grammar, _Compiled | str] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, grammar: Grammar) -> _Compiled | str | None:
        with self._lock:
            if grammar in self._entries:
                self._entries.move_to_end(grammar)
            return self._entries.get(grammar)

    def put(self, grammar: Grammar, entry: _Compiled | str) -> None:
        with self._lock:
            self._entries[grammar] = entry
            self._num_bytes += _size(grammar, entry)
            while self._num_bytes > CACHE_BYTES:
                self._num_bytes -= _size(*self._entries.popitem(last=False))


def _size(grammar: Grammar, entry: _Compiled | str) -> int:
    return _ENTRY_BYTES + len(grammar.source) + (0 if isinstance(entry, str) else entry.num_bytes)
