"""Makes the results of an evaluation: an example of an answer, and the evidence that the certificate states.

The evidence has the same structure as that of `workers.inference.evidence`. This module must not import Django,
because a fake child process imports it too.
"""

from typing import Any

EXAMPLE = {
    "custom_id": "row-1",
    "prompt": "Where is <Kassel>?",
    "acceptance_length": 2.5,
    "parts": [{"text": "In ", "accepted": False}, {"text": "the middle of ", "accepted": True}],
    "is_cut": True,
}


def make_evidence(*, equal: int = 20, different: int = 0, exact_reason: str | None = None) -> dict[str, Any]:
    return {
        "exact": exact_reason is None,
        "exact_reason": exact_reason,
        "result": "different" if different else "equal",
        "equal_to": "model",
        "counts": {
            "prompts": equal + different,
            "equal": equal,
            "equal_to_model": equal,
            "different": different,
            "refused": 0,
            "answers": 80,
        },
        "prompts": {"sha256": "1" * 64, "count": equal + different},
        "answers": {"plain_sha256": "2" * 64, "speculative_sha256": ("3" if different else "2") * 64},
        "model_sha256": "0" * 64,
        "speculator_sha256": "4" * 64,
        "drafter": "medusa",
        "sampling": {"greedy": 20, "sampled": 0, "max_tokens": None, "seed_key": "job_1"},
        "runs": {"concurrencies": [1, 4], "repeats": 1},
        "device": {"type": "cpu", "name": "a processor"},
        "dtype": "bfloat16",
        "weights": "auto",
        "system_fingerprint": "fp1.of.the.evidence",
        "build": {"commit": None, "code_sha256": "5" * 64, "versions": {"python": "3.12"}},
    }
