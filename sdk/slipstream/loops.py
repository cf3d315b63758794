"""Loops: a deployment's speculator is retrained in rounds, with the requests that the deployment has captured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of, without_none
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Record):
    id: str
    deployment_id: str
    enabled: bool
    triggers: Mapping[str, Any]  # keys: acceptance_drop, every_hours, new_requests
    limits: Mapping[str, Any]  # keys: min_seconds_between_rounds, monthly_budget, max_rows
    recipe: Mapping[str, Any]
    gate: Mapping[str, Any]
    rollout: Mapping[str, Any]
    running_round_id: str | None = None
    spent_this_month: Mapping[str, Any]  # keys: value, currency
    blocked: Mapping[str, Any] | None = None  # why no round began although a trigger applied; keys: code, message
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRound(Record):
    id: str
    deployment_id: str
    status: str  # capturing, distilling, … ; promoted, rejected, rolled_back, failed and stopped are final
    trigger: str  # acceptance_drop, schedule, new_requests
    reason: Mapping[str, Any] | None = None  # why the round ended; keys: code, message
    figures: Mapping[str, Any] | None = None  # keys: concurrency, old, new; measured on the held-out requests
    cost: Mapping[str, Any]  # keys: value, currency
    previous_speculator_id: str | None = None
    speculator_id: str | None = None
    prompts_file: str | None = None
    held_out_file: str | None = None
    pipeline_id: str | None = None
    batch_id: str | None = None
    evaluation_id: str | None = None
    rollout_id: str | None = None
    timeline: Sequence[Mapping[str, Any]] = ()  # keys: status, at
    created_at: int
    finished_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.finished_at is not None


class Loops(Resource[D]):
    @procedure
    def set(
        self,
        deployment_id: str,
        *,
        enabled: bool = True,
        triggers: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        rollout: Mapping[str, Any] | None = None,
    ) -> Steps[Loop]:
        """Create the loop of a deployment, or replace all its settings. Omitted arguments get their defaults.

        Args:
            triggers: when a round begins: {"acceptance_drop": True, "every_hours": 168, "new_requests": 5000}.
            limits: {"min_seconds_between_rounds": 86400, "monthly_budget": 50, "max_rows": 5000}.
            recipe: {"kind": "medusa", "max_seconds": 3600, "hyperparameters": {…}, "min_rows": 200, …}.
            gate: the same keys as the gate of a pipeline, and "min_acceptance_gain".
            rollout: the terms of the rollout, as for `rollouts.create`.
        """
        given = without_none(
            {"triggers": triggers, "limits": limits, "recipe": recipe, "gate": gate, "rollout": rollout}
        )
        return self.http.put(Loop, self._path(deployment_id), {"enabled": enabled, **given})

    @procedure
    def retrieve(self, deployment_id: str) -> Steps[Loop]:
        """Raises: NotFoundError: the deployment has no loop."""
        return self.http.get(Loop, self._path(deployment_id))

    @procedure
    def update(
        self,
        deployment_id: str,
        *,
        enabled: bool | None = None,
        triggers: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        rollout: Mapping[str, Any] | None = None,
    ) -> Steps[Loop]:
        """Change the given settings. A given mapping replaces the previous one as a whole.

        `enabled=False` also stops the running round.
        """
        given = {
            "enabled": enabled, "triggers": triggers, "limits": limits, "recipe": recipe, "gate": gate,
            "rollout": rollout,
        }  # fmt: skip
        return self.http.patch(Loop, self._path(deployment_id), without_none(given))

    @procedure
    def delete(self, deployment_id: str) -> Steps[None]:
        """Stop the running round and delete the settings. The rounds remain."""
        return self.http.delete(self._path(deployment_id))

    @listing
    def rounds(self, deployment_id: str) -> Items[Page[LoopRound]]:
        return self.http.pages(LoopRound, f"{self._path(deployment_id)}/rounds")

    @procedure
    def retrieve_round(self, deployment_id: str, round_id: str) -> Steps[LoopRound]:
        return self.http.get(LoopRound, f"{self._path(deployment_id)}/{path_of('rounds', round_id)}")

    def _path(self, deployment_id: str) -> str:
        return path_of("deployments", deployment_id, "loop")
