"""Audits a claim while the server also runs other requests (engine/audit)."""

from typing import Any
from uuid import uuid4

from engine.audit.claim import Claim
from engine.audit.verdict import ChoiceCheck, mismatch_of, require_exact, verdict_of
from engine.server.async_engine import AsyncEngine
from engine.tokenizer import Tokenizer


async def audit(
    async_engine: AsyncEngine, claim: Claim, *, adapter: str | None, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Returns the verdict as JSON. If the task is cancelled, the engine stops re-scoring.

    Raises: InvalidRequest: this engine cannot audit the claim. ServerFault: the engine cannot audit now.
    """
    engine = async_engine.worker.engine
    fingerprint = require_exact(engine.fingerprint(adapter), engine.row_invariance)
    if (mismatch := mismatch_of(claim, fingerprint)) is not None:
        return mismatch
    checks = [ChoiceCheck(claim, choice, tokenizer) for choice in claim.choices]
    requests = claim.engine_requests(f"audit-{uuid4().hex}", adapter=adapter)
    scored = [(request, check) for request, check in zip(requests, checks, strict=True) if not check.ended]
    num_cached = 0
    generation = async_engine.open([request for request, _ in scored])
    try:
        num_open = len(scored)
        while num_open:
            number, output = await generation.next()
            check = scored[number][1]
            check.push(output)
            if output.finish_reason is not None:
                num_open -= 1
                num_cached += output.speculation.num_cached_tokens if output.speculation else 0
            elif check.ended:
                generation.cancel(number)
    finally:
        generation.close()
    return verdict_of(claim, checks, fingerprint, num_cached=num_cached)
