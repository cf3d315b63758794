"""Spend caps limit the monthly costs of the organization or a project. When a cap is reached, work is paused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendCap(Record):
    id: str
    project_id: str | None = None  # None: the cap applies to the whole organization
    amount: Mapping[str, Any]  # value, currency
    spent: Mapping[str, Any]  # costs so far this month
    is_reached: bool
    month_start: int
    created_at: int


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
