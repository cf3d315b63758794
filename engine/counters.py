"""What an engine did since it was made, for whoever watches it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """All but `kv_usage` only grow."""

    num_preemptions: int = 0
    prefix_queries: int = 0  # prompt tokens looked up among shared prefixes
    prefix_hits: int = 0  # of these, found
    kv_usage: float = 0.0  # share of the cache's slots that sequences hold, 0..1
    num_drafts: int = 0  # verify passes, per sequence
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)  # [i]: passes that accepted more than i tokens

    def record(self, *, drafted: int, accepted: int) -> None:
        """One sequence's part of a pass was verified."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.accepted_per_position += [0] * (accepted - len(self.accepted_per_position))
        for position in range(accepted):
            self.accepted_per_position[position] += 1
