"""Finds the engine that answers a request, and the prices and limits that the gateway needs for the request.

A route is read from the database at most once a second, not for every request. A changed deployment or price, or a
first spend cap, therefore takes effect within a second. A refusal is not cached: as soon as a deployment is ready, the
next request reaches it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from control.billing.spending.selectors import cap_reached, caps_of
from control.billing.usage.selectors import price_of, require_price
from control.core.api.errors import ApiError, over_limit
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.selectors import canary_of, deployment_by_name, replicas_up
from control.serving.gateway.model_limits import model_limits
from control.serving.gateway.upstream import Target, wake
from control.serving.gateway.waking import Waking
from control.serving.rollouts.evidence import Side
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.selectors import rollout_measured
from control.tenants.accounts.models import ApiKey
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import as_tenant

RETRY_AFTER_SECONDS = 5
# A preferred replica gets a request only if it then has at most this many times the average of open requests.
MAX_LOAD = 1.25
CACHE_SECONDS = 1.0
_MAX_ROUTES = 10_000

Call = Callable[..., Awaitable[Any]]  # calls a function with its arguments in a thread that may use the database


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A replica that is up."""

    deployment_id: str  # of the named deployment, or of its canary
    target: Target
    is_asleep: bool = False  # according to the supervisor's last health check


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A rollout for which the gateway measures requests."""

    rollout_id: str
    side: str | None  # the side of the evidence for all requests; None: the side depends on the process
    canary_id: str
    shadows: tuple[Process, ...] = ()  # processes that answer copies of requests
    shadow_percent: int = 0  # share of the requests that are copied

    def side_of(self, process: Process) -> str:
        if self.side is not None:
            return self.side
        return Side.CANDIDATE if process.deployment_id == self.canary_id else Side.STABLE


class OpenByTarget(Counter[Target]):
    """Counts the requests that this gateway has sent to each replica and that have not ended."""

    @contextmanager
    def one_more(self, target: Target) -> Iterator[None]:
        self[target] += 1
        try:
            yield
        finally:
            self[target] -= 1
            if not self[target]:
                del self[target]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    named_id: str  # the deployment that `model` names
    base_model_id: str
    main: tuple[Process, ...]  # `main` and `canary` are never both empty
    canary: tuple[Process, ...]
    canary_percent: int
    is_capped: bool  # whether spend caps apply to the caller
    input_nanousd: int  # a token's price
    output_nanousd: int
    context_tokens: int
    template_bytes: int  # of text that the chat template can add for each part of a chat
    remembers_answers: bool  # whether drafts may be copied from past answers
    trial: Trial | None = None

    def choose(self, opening: str, open_requests: OpenByTarget, *, without: Collection[Process] = ()) -> Process | None:
        """Selects the canary for its share of the requests, and then a replica.

        All gateways prefer the same replica for the requests of a conversation, because it has the beginning of their
        prompts in its KV cache. If this replica has too many open requests (`MAX_LOAD`), another one is selected.

        Replicas that are awake come first. The supervisors wake sleeping replicas when any replica is in use.
        If only the deployment or only its canary has processes, those get all requests.

        Args:
            opening: a hash of the conversation's beginning.
            without: processes that did not accept the request.
        Returns: None if there is no other process.

        Source: rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads (Mirrokni et al. 2016).
        """
        main, canary = (tuple(each for each in group if each not in without) for group in (self.main, self.canary))
        is_canary = bool(canary) and (not main or random.random() * 100 < self.canary_percent)
        processes = canary if is_canary else main
        processes = tuple(each for each in processes if not each.is_asleep) or processes
        if not processes:
            return None
        num_open = {each: open_requests[each.target] for each in processes}
        fewest, average = min(num_open.values()), (sum(num_open.values()) + 1) / len(processes)
        free = [each for each, count in num_open.items() if count == fewest or count + 1 <= MAX_LOAD * average]
        return max(free, key=lambda each: each.target.weight(opening))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The key of a cached route."""

    caller: Caller
    model: str
    only: tuple[str, ...] | None  # the deployments to which the key is restricted


@dataclass(frozen=True, slots=True)
class _Entry:
    reading: asyncio.Task[Route]
    read_at: float


class Routes:
    """Caches routes. If concurrent requests need one route, only the first reads it; the others wait for the result."""

    def __init__(self, call: Call) -> None:
        self.open_by_target = OpenByTarget()
        self.waking = Waking(wake)
        self._call = call
        self._entries: dict[_Wanted, _Entry] = {}

    async def find(self, key: ApiKey, model: str, *, newer_than: Route | None = None) -> Route:
        """Returns the route of requests with this API key and this model name.

        Args: newer_than: a route that did not work and must not be returned from the cache again.
        Raises: ApiError: 404, 503, or 429 if a spend cap is reached.
        """
        only = None if key.deployment_ids is None else tuple(key.deployment_ids)
        wanted = _Wanted(Caller.of(key), model, only)
        entry = self._entries.get(wanted)
        if entry is None or monotonic() - entry.read_at >= CACHE_SECONDS or _is(entry.reading, newer_than):
            entry = self._read(wanted, key)
        # A caller who disconnects must not cancel the read, because other callers may wait for the result.
        return await asyncio.shield(entry.reading)

    def _read(self, wanted: _Wanted, key: ApiKey) -> _Entry:
        if len(self._entries) >= _MAX_ROUTES:
            self._entries.clear()
        entry = _Entry(asyncio.ensure_future(self._call(route_read, key, wanted.model)), monotonic())
        self._entries[wanted] = entry
        entry.reading.add_done_callback(partial(self._drop_refusal, wanted))
        return entry

    def _drop_refusal(self, wanted: _Wanted, reading: asyncio.Task[Route]) -> None:
        is_refusal = reading.cancelled() or reading.exception() is not None
        entry = self._entries.get(wanted)
        if is_refusal and entry is not None and entry.reading is reading:
            del self._entries[wanted]


def _is(reading: asyncio.Task[Route], route: Route | None) -> bool:
    return route is not None and reading.done() and reading.result() is route


def route_read(key: ApiKey, model: str) -> Route:
    """Reads a route from the database. Raises: ApiError."""
    caller = Caller.of(key)
    with as_tenant(key.organization_id, key.project_id):
        is_capped = caps_of(caller).exists()
        if is_capped and (reached := cap_reached(caller)):
            raise over_limit(reached.message, reached.code)
        deployment = deployment_by_name(key.organization, model, only=key.deployment_ids)
        canary = canary_of(deployment)
        main_processes, canary_processes = _processes(deployment), () if canary is None else _processes(canary)
        if not main_processes and not canary_processes:
            raise _not_ready(deployment)
        require_price(base_model_id=deployment.base_model_id, name=deployment.base_model.name)
        price = price_of(deployment.base_model_id)
        trial = _trial(deployment)
    limits = model_limits(deployment.base_model.path, deployment.base_model.revision)
    return Route(
        named_id=deployment.pk,
        base_model_id=deployment.base_model_id,
        main=main_processes,
        canary=canary_processes,
        canary_percent=0 if canary is None else canary.canary_percent,
        is_capped=is_capped,
        input_nanousd=price.input_nanousd,
        output_nanousd=price.output_nanousd,
        context_tokens=limits.context_tokens,
        template_bytes=limits.template_bytes,
        remembers_answers=deployment.remember_answers,
        trial=trial,
    )


def _trial(deployment: Deployment) -> Trial | None:
    rollout = rollout_measured(deployment)
    if rollout is None:
        return None
    is_shadow = rollout.status == Rollout.Status.CANARY and rollout.mode == Rollout.Mode.SHADOW
    return Trial(
        rollout_id=rollout.pk,
        side=Side.PROMOTED if rollout.status == Rollout.Status.WATCHING else None,
        canary_id=rollout.canary_id,
        shadows=_processes(rollout.canary) if is_shadow else (),
        shadow_percent=rollout.share_percent if is_shadow else 0,
    )


def _processes(deployment: Deployment) -> tuple[Process, ...]:
    return tuple(
        Process(
            deployment_id=deployment.pk,
            target=Target(replica.host, replica.port, replica.token, replica.operator_token, replica.certificate),
            is_asleep=replica.state == Replica.State.SLEEPING,
        )
        for replica in replicas_up(deployment)
        if replica.port is not None
    )


def _not_ready(deployment: Deployment) -> ApiError:
    """`x-should-retry` tells OpenAI's client not to retry by itself if the deployment has stopped or failed."""
    is_starting = deployment.state == Deployment.State.PROVISIONING
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} | ({} if is_starting else {"x-should-retry": "false"})
    code = "deployment_not_ready" if is_starting else f"deployment_{deployment.state}"
    start = f"POST /v1/deployments/{deployment.pk}/start starts it."
    advice = {
        Deployment.State.PROVISIONING: "Try again in some seconds.",
        Deployment.State.STOPPED: start,
        Deployment.State.FAILED: f"{(deployment.error or {}).get('message', '').rstrip('.')}. {start}".lstrip(". "),
    }.get(Deployment.State(deployment.state), "")
    message = f"The deployment {deployment.name!r} is {deployment.state}. {advice}".rstrip()
    return ApiError(503, message, code, headers=headers)
