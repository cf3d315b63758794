"""Drafts for each request with the drafter of its LoRA adapter, because an adapter changes the model's output."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

from engine.cache.kv_cache import KVCache
from engine.draft import Draft
from engine.drafters.base import Drafter, Pass, split_taps
from engine.sequence import Sequence


class PerAdapterDrafter(Drafter):
    def __init__(self, general: Drafter, own: Mapping[str, Drafter]) -> None:
        """`own`: adapter name -> drafter. `general` drafts for all other requests."""
        self.general = general
        self.own = dict(own)
        self._drafters = (general, *self.own.values())
        self.name = general.name
        self.max_depth = max(drafter.max_depth for drafter in self._drafters)
        self.tap_layers = tuple(layer for drafter in self._drafters for layer in drafter.tap_layers)
        self.slot_bytes = sum(drafter.slot_bytes for drafter in self._drafters)

    def prepare(self, cache: KVCache) -> None:
        for drafter in self._drafters:
            drafter.prepare(cache)

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts: dict[Sequence, Draft] = {}
        for drafter in self._drafters:
            if own_sequences := [sequence for sequence in sequences if self._drafter_of(sequence) is drafter]:
                drafts |= zip(own_sequences, drafter.propose(own_sequences, budget), strict=True)
        return [drafts[sequence] for sequence in sequences]

    def observe(self, done: Pass) -> None:
        for drafter, own_pass in split_taps(done, self._drafters):
            if own_kept := tuple(kept for kept in done.kept if self._drafter_of(kept.sequence) is drafter):
                drafter.observe(replace(own_pass, kept=own_kept))

    def forget(self, request_id: str) -> None:
        for drafter in self._drafters:
            drafter.forget(request_id)

    def forget_past(self) -> None:
        for drafter in self._drafters:
            drafter.forget_past()

    def _drafter_of(self, sequence: Sequence) -> Drafter:
        return self.own.get(sequence.request.adapter or "", self.general)
