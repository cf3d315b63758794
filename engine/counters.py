"""Counters of an engine since its creation, for monitoring."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """The counters of one engine. `kv_usage` is a gauge; all other values only increase."""

    num_preemptions: int = 0
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # prompt tokens found in the prefix cache
    kv_usage: float = 0.0  # share of the cache's slots that sequences use, 0..1
    num_drafts: int = 0  # number of verifications, one per sequence and pass
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)  # [i]: verifications that accepted more than i

    def record(self, *, drafted: int, accepted: int) -> None:
        """Records the verification of one sequence in a pass."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.accepted_per_position += [0] * (accepted - len(self.accepted_per_position))
        for position in range(accepted):
            self.accepted_per_position[position] += 1
