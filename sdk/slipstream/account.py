"""The API keys, the usage and the costs of an organization."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Item, Items, Page, Steps, iteration, listing, procedure
from slipstream.http import D, Resource, path_of, without_none
from slipstream.records import Record, parsed
from slipstream.types import ApiKey, Bucket, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine(Record):
    id: str
    subject: str
    object_id: str  # id of the deployment, batch or job
    sequence: str
    count: int  # number of tokens, or of milliseconds on one device
    started_at: int
    ended_at: int
    price_percent: int
    cost: Mapping[str, Any]  # keys: value, currency
    price: Mapping[str, Any] | None = None  # price of one token, or of one hour of a device
    project_id: str | None = None
    api_key_id: str | None = None
    base_model_id: str | None = None
    device_kind: str | None = None
    credit_reason: str | None = None  # gate_rejected or attempt_failed if the line is a credit; its cost is negative
    credited_count: int | None = None


class ApiKeys(Resource[D]):
    @procedure
    def create(
        self,
        *,
        name: str,
        scopes: Sequence[str] | None = None,
        project_id: str | None = None,
        member_id: str | None = None,
        deployment_ids: Sequence[str] | None = None,
        expires_at: int | None = None,
    ) -> Steps[ApiKey]:
        """Create an API key; the secret is in `key`.

        `key` is None if the request was retried because the response to an earlier attempt was lost. In this case,
        revoke the key and create another one.
        """
        body = {"name": name, "scopes": scopes, "project_id": project_id, "deployment_ids": deployment_ids}
        return self.http.post(ApiKey, "api_keys", {**body, "member_id": member_id, "expires_at": expires_at})

    @procedure
    def retrieve(self, key_id: str) -> Steps[ApiKey]:
        return self.http.get(ApiKey, path_of("api_keys", key_id))

    @listing
    def list(self) -> Items[Page[ApiKey]]:
        return self.http.pages(ApiKey, "api_keys")

    @procedure
    def rotate(self, key_id: str, *, grace_seconds: int | None = None) -> Steps[ApiKey]:
        """Create a new key with the same rights; the old key stays valid for `grace_seconds`."""
        return self.http.post(ApiKey, path_of("api_keys", key_id, "rotate"), {"grace_seconds": grace_seconds})

    @procedure
    def revoke(self, key_id: str) -> Steps[None]:
        return self.http.delete(path_of("api_keys", key_id))


class Usages(Resource[D]):
    @procedure
    def total(self, *, start_time: int | None = None, end_time: int | None = None) -> Steps[Usage]:
        return self.http.get(Usage, "usage", {"start_time": start_time, "end_time": end_time})

    @listing
    def ledger(
        self,
        *,
        subject: str | None = None,
        device_kind: str | None = None,
        start_time: int | None = None,
        end_time: int | None = None,
    ) -> Items[Page[LedgerLine]]:
        """Yield the lines on which bills are based, newest first; by default the lines of this month."""
        params = {"subject": subject, "device_kind": device_kind, "start_time": start_time, "end_time": end_time}
        return self.http.pages(LedgerLine, "usage/ledger", params)

    @iteration
    def completions(
        self, *, start_time: int, end_time: int | None = None, bucket_width: str = "1d", group_by: Sequence[str] = ()
    ) -> Items[Bucket]:
        """Yield the usage of batches and of requests to deployments, by interval.

        Args:
            bucket_width: length of the intervals: 1m, 1h or 1d.
            group_by: project_id, api_key_id, model, batch.
        """
        return self._buckets("organization/usage/completions", start_time, end_time, bucket_width, group_by)

    @iteration
    def costs(
        self, *, start_time: int, end_time: int | None = None, bucket_width: str = "1d", group_by: Sequence[str] = ()
    ) -> Items[Bucket]:
        """Yield costs by interval. Args: group_by: project_id, api_key_id, line_item."""
        return self._buckets("organization/costs", start_time, end_time, bucket_width, group_by)

    def _buckets(
        self, path: str, start_time: int, end_time: int | None, bucket_width: str, group_by: Sequence[str]
    ) -> Items[Bucket]:
        params = without_none({"start_time": start_time, "end_time": end_time, "bucket_width": bucket_width})
        params |= {"group_by[]": list(group_by)} if group_by else {}
        while True:
            page = yield from self.http.request("GET", path, params=params)
            for values in page["data"]:
                yield Item(parsed(Bucket, values))
            if not page.get("has_more"):
                return
            params["page"] = page["next_page"]
