"""Rollouts: a deployment tries another speculator on a share of its requests, or on copies of them, and then keeps or
removes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record
from slipstream.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Record):
    id: str
    deployment_id: str
    speculator_id: str
    previous_speculator_id: str | None = None
    status: str  # starting, canary, promoting, watching, promoted, rolled_back
    mode: str = "canary"  # or shadow
    share_percent: int
    reason: Mapping[str, Any] | None = None  # why it was promoted or rolled back; keys: code, message
    figures: Mapping[str, Any] | None = None  # the measurements behind the decision; keys: canary, stable
    trial: Mapping[str, Any] | None = None  # keys: rules, gates, evidence, verdict, certificate
    watch: Mapping[str, Any] | None = None  # the same keys, for the time after the promotion
    created_at: int
    started_at: int | None = None
    watched_at: int | None = None
    finished_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.status in ("promoted", "rolled_back")


class Rollouts(Resource[D]):
    @procedure
    def create(
        self,
        deployment_id: str,
        *,
        speculator_id: str,
        mode: str | None = None,
        share_percent: int | None = None,
        min_requests: int | None = None,
        max_acceptance_drop: float | None = None,
        max_error_rate: float | None = None,
        alpha: float | None = None,
        first_token_seconds: float | None = None,
        inter_token_seconds: float | None = None,
        max_slow_increase: float | None = None,
        max_seconds: int | None = None,
        max_requests: int | None = None,
        on_undecided: str | None = None,
        watch_seconds: int | None = None,
        allow_output_change: bool | None = None,
    ) -> Steps[Rollout]:
        """Start a rollout of another speculator.

        Args:
            mode: `canary`: the new speculator answers a share of the requests. `shadow`: it answers copies of them, and
                its answers are compared with those that the callers got.
            share_percent: percentage of the requests that the new speculator gets, 1 to 50.
            max_acceptance_drop: tolerated decrease of the acceptance length, 0 to 1, relative to the current
                speculator's acceptance length.
            alpha: the largest probability that any statistical gate ever passes or fails wrongly.
            first_token_seconds: a stream is slow if its first token comes later than this; None: no limit.
            inter_token_seconds: a stream is slow if the mean time between its tokens exceeds this; None: no limit.
            max_slow_increase: tolerated increase of the share of slow requests.
            on_undecided: `roll_back` or `promote`: what happens after `max_seconds` or `max_requests` if nothing has
                been decided.
            watch_seconds: how long after the promotion the new speculator is still compared with the measurements of
                the previous speculator.
        """
        body = {
            "speculator_id": speculator_id,
            "mode": mode,
            "share_percent": share_percent,
            "min_requests": min_requests,
            "max_acceptance_drop": max_acceptance_drop,
            "max_error_rate": max_error_rate,
            "alpha": alpha,
            "first_token_seconds": first_token_seconds,
            "inter_token_seconds": inter_token_seconds,
            "max_slow_increase": max_slow_increase,
            "max_seconds": max_seconds,
            "max_requests": max_requests,
            "on_undecided": on_undecided,
            "watch_seconds": watch_seconds,
            "allow_output_change": allow_output_change,
        }
        return self.http.post(Rollout, path_of("deployments", deployment_id, "rollouts"), body)

    @procedure
    def retrieve(self, deployment_id: str, rollout_id: str) -> Steps[Rollout]:
        return self.http.get(Rollout, self._path(deployment_id, rollout_id))

    @listing
    def list(self, deployment_id: str) -> Items[Page[Rollout]]:
        return self.http.pages(Rollout, path_of("deployments", deployment_id, "rollouts"))

    @procedure
    def cancel(self, deployment_id: str, rollout_id: str) -> Steps[Rollout]:
        """Cancel the rollout: send all requests to the previous speculator again."""
        return self.http.post(Rollout, f"{self._path(deployment_id, rollout_id)}/cancel")

    @procedure
    def wait(
        self,
        deployment_id: str,
        rollout_id: str,
        *,
        on_progress: Callable[[Rollout], Any] | None = None,
        poll_seconds: float = 5.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Rollout]:
        """Return the rollout when it is promoted or rolled back. Raises: WaitTimeout."""
        return wait_for(
            lambda: self.http.get(Rollout, self._path(deployment_id, rollout_id)),
            lambda rollout: rollout.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )

    def _path(self, deployment_id: str, rollout_id: str) -> str:
        return path_of("deployments", deployment_id, path_of("rollouts", rollout_id))
