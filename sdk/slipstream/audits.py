"""Audits: an endpoint scores an earlier answer again and names the first token that differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True)
class Audit(Record):
    """The result of an audit. `verdict` is equal, different or fingerprint_mismatch.

    Each choice has its own verdict, and names the first token that differs.
    """

    verdict: str
    system_fingerprint: str  # fingerprint of the endpoint
    choices: Sequence[Mapping[str, Any]] = ()
    parts: Sequence[Mapping[str, Any]] = ()  # the parts of the fingerprint that differ
    message: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def is_equal(self) -> bool:
        return self.verdict == "equal"


class Audits(Resource[D]):
    @procedure
    def create(self, /, *, model: str, request: Mapping[str, Any], response: Mapping[str, Any]) -> Steps[Audit]:
        """Score a response to an earlier request again.

        Args:
            model: a deployment with the same weights, build and kind of device as the deployment that gave the answer.
            request: the body of the chat or text completion.
            response: the response to this request, with token ids (`return_token_ids` in the request).
        """
        return self.http.post(Audit, "audit", {"model": model, "request": request, "response": response})
