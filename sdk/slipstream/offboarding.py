"""Exports of everything that the organization has, and its deletion."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationExport(Record):
    id: str
    status: str  # running, completed
    size_bytes: int  # of the archive, as far as it is written
    created_at: int
    finished_at: int | None = None
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationDeletion(Record):
    organization_id: str
    requested_at: int
    erase_after: int  # until then, an owner can cancel the deletion in the console


class OrganizationExports(Resource[D]):
    @procedure
    def create(self) -> Steps[OrganizationExport]:
        """Begin to make an archive. Raises: ConflictError: there is an export; delete it first."""
        return self.http.post(OrganizationExport, "organization/exports", {})

    @procedure
    def retrieve(self, export_id: str) -> Steps[OrganizationExport]:
        return self.http.get(OrganizationExport, path_of("organization", "exports", export_id))

    @listing
    def list(self) -> Items[Page[OrganizationExport]]:
        return self.http.pages(OrganizationExport, "organization/exports")

    @procedure
    def delete(self, export_id: str) -> Steps[None]:
        return self.http.delete(path_of("organization", "exports", export_id))

    @procedure
    def download(self, export_id: str, to: Path | str) -> Steps[Path]:
        """Write the complete archive to `to`. The same call continues an interrupted download.

        Raises: ConflictError: the export is not complete yet.
        """
        path = path_of("organization", "exports", export_id, "content")
        return save(self.http, path, Path(to), identity=export_id)


class Organization(Resource[D]):
    @procedure
    def delete(self, *, name: str) -> Steps[OrganizationDeletion]:
        """Request the deletion of the organization with all that it has. From now on, its API keys are refused.

        Args: name: the organization's exact name, as a confirmation.
        """
        return self.http.post(OrganizationDeletion, "organization/deletion", {"name": name})
