"""Members, projects and audit events of the organization."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.errors import APIResponseError
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.records import Record, record


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Record):
    id: str
    email: str
    role: str  # owner, member, billing, read_only
    status: str  # invited, active


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Record):
    id: str
    name: str
    created_at: int
    archived_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent(Record):
    id: str
    action: str
    actor: Mapping[str, Any]  # keys: type, id
    target: Mapping[str, Any]  # keys: type, id
    ip: str | None = None
    request_id: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditExport(Record):
    """The receipt for a complete export of one month of the audit log."""

    id: str
    month: str
    num_events: int
    sha256: str
    created_at: int
    dropped_at: int | None = None


class Members(Resource[D]):
    @procedure
    def create(self, *, email: str, role: str = "member") -> Steps[Member]:
        return self.http.post(Member, "members", {"email": email, "role": role})

    @procedure
    def invite(self, member_id: str) -> Steps[Member]:
        """Send the invitation again. Raises: ConflictError: the member has signed in already."""
        return self.http.post(Member, path_of("members", member_id, "invitation"), {})

    @procedure
    def retrieve(self, member_id: str) -> Steps[Member]:
        return self.http.get(Member, path_of("members", member_id))

    @listing
    def list(self) -> Items[Page[Member]]:
        return self.http.pages(Member, "members")

    @procedure
    def update(self, member_id: str, *, role: str) -> Steps[Member]:
        """Change a member's role. Raises: ConflictError: the member is the organization's only owner."""
        return self.http.patch(Member, path_of("members", member_id), {"role": role})

    @procedure
    def delete(self, member_id: str) -> Steps[None]:
        return self.http.delete(path_of("members", member_id))


class Projects(Resource[D]):
    @procedure
    def create(self, *, name: str) -> Steps[Project]:
        return self.http.post(Project, "projects", {"name": name})

    @procedure
    def retrieve(self, project_id: str) -> Steps[Project]:
        return self.http.get(Project, path_of("projects", project_id))

    @listing
    def list(self) -> Items[Page[Project]]:
        return self.http.pages(Project, "projects")

    @procedure
    def update(self, project_id: str, *, name: str) -> Steps[Project]:
        return self.http.patch(Project, path_of("projects", project_id), {"name": name})

    @procedure
    def archive(self, project_id: str) -> Steps[Project]:
        """Archive a project; its API keys are refused from now on."""
        return self.http.post(Project, path_of("projects", project_id, "archive"))


class AuditEvents(Resource[D]):
    @listing
    def list(self) -> Items[Page[AuditEvent]]:
        """Yield every change made by a key or an operator, newest first."""
        return self.http.pages(AuditEvent, "audit_events")

    @procedure
    def export(self, month: str, to: Path | str) -> Steps[AuditExport]:
        """Write the events of a month such as "2026-01" to a file, one JSON object per line; the last object is the
        receipt.

        Raises: APIResponseError: the received lines have the wrong digest.
        """
        path = yield from save(self.http, f"audit_events/export?month={quote(month)}", Path(to))
        digest, last = hashlib.sha256(), b""
        with path.open("rb") as lines:
            for line in lines:
                digest.update(last)
                last = line
        receipt = json.loads(last or b"{}")
        if receipt.get("sha256") != digest.hexdigest():
            raise APIResponseError(
                f"the events of {month} do not have the SHA-256 that the receipt (the last line) states; try again"
            )
        return record(AuditExport, receipt)

    @procedure
    def drop(self, *, month: str, sha256: str) -> Steps[AuditExport]:
        """Delete the events of a month; `sha256` is the digest that `export` returned."""
        return self.http.post(AuditExport, "audit_events/drop", {"month": month, "sha256": sha256})
