"""A request that has ended, as the gateway records it."""

import datetime as dt
from dataclasses import dataclass

from control.billing.usage.services import Tokens
from control.serving.rollouts.evidence import Observation
from control.tenants.authentication.caller import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    caller: Caller
    model: str  # as the request names it
    at: dt.datetime
    tokens: Tokens | None  # None: no tokens count, because the engine refused the request or failed before its answer
    reservation_id: str | None  # None: no spend cap applies
    failed_id: str | None = None  # the deployment whose process failed
    named_id: str = ""  # the deployment that `model` names
    base_model_id: str = ""
    endpoint: str = ""
    body: bytes | None = None  # None: too long to be captured
    observation: Observation | None = None  # for a rollout; None: nothing is measured
