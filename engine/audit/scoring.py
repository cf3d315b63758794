"""Audits claims with an engine of this process that has no other requests."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine.audit.claim import Claim
from engine.audit.verdict import ChoiceCheck, mismatch_of, require_exact, verdict_of
from engine.errors import RequestTooLong
from engine.fields import InvalidRequest
from engine.grammars.compiler import GrammarCompiler
from engine.loop import Engine
from engine.request import StepOutput
from engine.tokenizer import Tokenizer


def audit(engine: Engine, claim: Claim, *, tokenizer: Tokenizer, grammars: GrammarCompiler) -> dict[str, Any]:
    """Returns the verdict as JSON.

    Args:
        grammars: the compiler of the engine.

    Raises: InvalidRequest: the answer does not fit into the engine's context, or the engine cannot audit.
    """
    adapter = claim.model if claim.model in engine.adapters.names else None
    fingerprint = require_exact(engine.fingerprint(adapter), engine.row_invariance)
    if (mismatch := mismatch_of(claim, fingerprint)) is not None:
        return mismatch
    claim = replace(claim, parsed=claim.parsed.compiled(grammars))
    checks = [ChoiceCheck(claim, choice, tokenizer) for choice in claim.choices]
    requests = claim.engine_requests("audit", adapter=adapter)
    checked = {request.request_id: check for request, check in zip(requests, checks, strict=True) if not check.ended}
    try:
        for request in requests:
            if request.request_id in checked:
                engine.add(request)
    except RequestTooLong as error:
        raise InvalidRequest(str(error), code="context_length_exceeded") from error
    num_cached = 0
    for output in _outputs(engine):
        check = checked[output.request_id]
        check.push(output)
        if output.finish_reason is None and check.ended:
            engine.cancel(output.request_id)
        elif output.speculation is not None:
            num_cached += output.speculation.num_cached_tokens
    return verdict_of(claim, checks, fingerprint, num_cached=num_cached)


def _outputs(engine: Engine) -> Iterator[StepOutput]:
    while engine.has_work:
        yield from engine.step()
