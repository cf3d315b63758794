"""Spend caps limit the monthly costs of the organization or a project. When a cap is reached, work is paused.

Thresholds of spending only cause an event and a mail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendCap(Record):
    id: str
    project_id: str | None = None  # None: the cap applies to the whole organization
    amount: Mapping[str, Any]  # keys: value, currency
    spent: Mapping[str, Any]  # costs so far this month; keys: value, currency
    is_reached: bool
    month_start: int
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingThresholds(Record):
    id: str  # of the organization or project
    spent: Mapping[str, Any]  # costs so far this month; keys: value, currency
    month_start: int
    thresholds: Sequence[Mapping[str, Any]]  # keys: id, amount or percent_of_cap, reached_at
    project_id: str | None = None  # None: the thresholds of the whole organization


class SpendCaps(Resource[D]):
    @procedure
    def create(self, *, amount: float, project_id: str | None = None) -> Steps[SpendCap]:
        """Create a spend cap. Args: amount: US dollars per calendar month (UTC)."""
        return self.http.post(SpendCap, "spend_caps", {"amount": amount, "project_id": project_id})

    @procedure
    def retrieve(self, cap_id: str) -> Steps[SpendCap]:
        return self.http.get(SpendCap, path_of("spend_caps", cap_id))

    @listing
    def list(self) -> Items[Page[SpendCap]]:
        return self.http.pages(SpendCap, "spend_caps")

    @procedure
    def update(self, cap_id: str, *, amount: float) -> Steps[SpendCap]:
        """Change the cap; paused work that fits the new cap continues where it stopped."""
        return self.http.patch(SpendCap, path_of("spend_caps", cap_id), {"amount": amount})

    @procedure
    def delete(self, cap_id: str) -> Steps[None]:
        return self.http.delete(path_of("spend_caps", cap_id))


class SpendingThresholdsResource(Resource[D]):
    @procedure
    def retrieve(self, *, project_id: str | None = None) -> Steps[SpendingThresholds]:
        return self.http.get(SpendingThresholds, "spending_thresholds", {"project_id": project_id})

    @procedure
    def set(
        self, *, thresholds: Sequence[Mapping[str, float]], project_id: str | None = None
    ) -> Steps[SpendingThresholds]:
        """Replace the thresholds.

        Args: thresholds: at most five; each is `{"amount": 50}` (US dollars in a month) or `{"percent_of_cap": 80}`.
        """
        body = {"thresholds": [dict(threshold) for threshold in thresholds], "project_id": project_id}
        return self.http.put(SpendingThresholds, "spending_thresholds", body)
