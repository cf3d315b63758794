"""Writes an organization's archive in parts. Joined in their order, the parts are one tar archive:

    objects/LABEL/NUMBER.jsonl    rows of the table LABEL, one JSON object per line
    stored/LABEL/ID/NAME          objects in storage that belong to a row, such as the content of a file
    manifest.json                 the last entry: the organization's name, the numbers of rows and stored objects, and
                                  the names of objects that could not be read

A `Position` says where the next part begins. It is stored with each part, so an archive can be continued by another
process after the writing process was killed. An object may be larger than a part.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Self

from django.db.models import QuerySet

from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import CHUNK_BYTES, StagedWriter
from control.models.adapters.services import CONFIG, WEIGHTS
from control.queue.jobs.checkpoints import checkpoints_prefix
from control.tenants.accounts.models import Organization
from control.workflows.offboarding.contents import STORED_OBJECTS, StoredObjects, exported_tables, rows_with_objects
from control.workflows.offboarding.rows import json_lines, rows_after

_OF_ADAPTER = (CONFIG, WEIGHTS)
MAX_LISTED = 1_000  # damaged objects that the manifest names


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    stage: str = "rows"  # rows, objects, manifest, end
    source: str = ""  # the table, or the name of the `StoredObjects`, from which the last entry was written
    after: Any = None  # primary key of the last row of the source that is written completely; None: there is none
    row: Any = None  # primary key of the row whose objects are being written
    name: str = ""  # name of the row's object that was written last
    key: str = ""  # the storage key of an object that is written in part
    entry: str = ""  # its name in the archive
    written: int = 0  # how many of its bytes are written
    size_bytes: int = 0
    num_rows: dict[str, int] = field(default_factory=dict)  # number of written rows by table
    num_objects: int = 0
    num_damaged: int = 0
    damaged: tuple[str, ...] = ()  # entries whose object was deleted or became shorter while it was copied

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Self:
        return cls(**{**stored, "damaged": tuple(stored.get("damaged", ()))})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class ArchiveWriter:
    def __init__(self, organization_id: str, position: Position, writer: StagedWriter, *, part_bytes: int) -> None:
        self.position = position
        self._organization_id = organization_id
        self._writer = writer
        self._part_bytes = part_bytes

    def write_part(self) -> None:
        """Writes until the part has its size or the archive is complete."""
        stages = {"rows": self._write_rows, "objects": self._write_objects, "manifest": self._write_manifest}
        if self.position.key:
            self._continue_object()
        while self._room > 0 and self.position.stage != "end":
            stages[self.position.stage]()

    @property
    def _room(self) -> int:
        return self._part_bytes - self._writer.size_bytes

    def _move(self, **changes: Any) -> None:
        self.position = replace(self.position, **changes)

    def _write_rows(self) -> None:
        for table in exported_tables():
            if table.label < self.position.source:
                continue
            if table.label > self.position.source:
                self._move(source=table.label, after=None)
            while rows := rows_after(table, self._organization_id, self.position.after):
                count = self.position.num_rows.get(table.label, 0)
                self._write_entry(f"objects/{table.label}/{count:012}.jsonl", json_lines(rows, self._organization_id))
                num_rows = {**self.position.num_rows, table.label: count + len(rows)}
                self._move(after=rows[-1].pk, num_rows=num_rows)
                if self._room <= 0:
                    return
        self._move(stage="objects", source="", after=None)

    def _write_objects(self) -> None:
        tables = {table.label: table for table in exported_tables()}
        for source in STORED_OBJECTS:
            if source.name < self.position.source:
                continue
            if source.name > self.position.source:
                self._move(source=source.name, after=None, row=None, name="")
            rows = rows_with_objects(tables[source.label], source, self._organization_id).order_by("pk")
            while (row := _first_after(rows, self.position.after)) is not None:
                if row.pk != self.position.row:  # the row of the object that was written last may be deleted by now
                    self._move(row=row.pk, name="")
                for name, key, size_bytes in _objects_of(row, source):
                    if name > self.position.name:
                        self._begin_object(f"stored/{source.label}/{row.pk}/{name}", name, key, size_bytes)
                    if self._room <= 0:
                        return
                self._move(after=row.pk, name="")
        self._move(stage="manifest")

    def _begin_object(self, entry: str, name: str, key: str, size_bytes: int) -> None:
        """Writes the object, or the part of it for which there is room."""
        self._move(name=name)
        if not get_storage().exists(key):
            self._damaged(entry)
            return
        self._writer.write(_header(entry, size_bytes))
        self._move(key=key, entry=entry, written=0, size_bytes=size_bytes)
        self._continue_object()

    def _continue_object(self) -> None:
        position = self.position
        num_bytes = min(position.size_bytes - position.written, max(0, self._room))
        for chunk in self._bytes_of(position.entry, position.key, position.written, num_bytes):
            self._writer.write(chunk)
        self._move(written=position.written + num_bytes)
        if self.position.written == position.size_bytes:
            self._writer.write(bytes(-position.size_bytes % tarfile.BLOCKSIZE))
            self._move(key="", entry="", num_objects=position.num_objects + 1)

    def _bytes_of(self, entry: str, key: str, start: int, num_bytes: int) -> Iterator[bytes]:
        """Yields exactly `num_bytes` bytes. Zeros replace missing bytes, because the header already states the size."""
        try:
            with get_storage().open(key, start=start) as stream:
                while num_bytes > 0 and (chunk := stream.read(min(CHUNK_BYTES, num_bytes))):
                    num_bytes -= len(chunk)
                    yield chunk
        except ObjectMissing:
            pass
        if num_bytes > 0:
            self._damaged(entry)
        while num_bytes > 0:
            yield bytes(min(CHUNK_BYTES, num_bytes))
            num_bytes -= min(CHUNK_BYTES, num_bytes)

    def _damaged(self, entry: str) -> None:
        listed = self.position.damaged
        if entry not in listed[-1:]:
            listed = (*listed, entry)[:MAX_LISTED]
            self._move(damaged=listed, num_damaged=self.position.num_damaged + 1)

    def _write_manifest(self) -> None:
        position = self.position
        organization = Organization.objects.filter(pk=self._organization_id).values("pk", "name", "created_at").get()
        manifest = {
            "organization": organization,
            "rows": position.num_rows,
            "stored_objects": position.num_objects,
            "num_damaged": position.num_damaged,
            "damaged": position.damaged,
        }
        self._write_entry("manifest.json", json.dumps(manifest, indent=1, default=str).encode())
        self._writer.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar archive
        self._move(stage="end")

    def _write_entry(self, name: str, content: bytes) -> None:
        self._writer.write(_header(name, len(content)))
        self._writer.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))


def _first_after(rows: QuerySet[Any], pk: Any) -> Any:
    return (rows if pk is None else rows.filter(pk__gt=pk)).first()


def _objects_of(row: Any, source: StoredObjects) -> list[tuple[str, str, int]]:
    """Returns name, storage key and size of each stored object of the row, sorted by name."""
    value = getattr(row, source.column)
    if source.label == "jobs.Job":  # customers may choose an adapter from every checkpoint of fine-tuning
        folder = checkpoints_prefix(row.pk)
        stored = sorted(get_storage().sizes(folder).items())
        return [(name, f"{folder}/{name}", size) for name, size in stored if name.rpartition("/")[2] in _OF_ADAPTER]
    if source.is_folder:
        return [(name, f"{value}/{name}", size) for name, size in sorted(get_storage().sizes(value).items())]
    if source.label == "files.File":
        return [(_entry_name(row.filename), value, row.size_bytes)]
    folder, _, name = value.rpartition("/")
    return [(name, value, get_storage().sizes(folder).get(name, 0))]


def _entry_name(filename: str) -> str:
    """Returns the last part of a customer's file name. Programs refuse archives with the name `..`."""
    name = PurePosixPath(filename).name
    return "file" if name in ("", "..") else name


def _header(name: str, size_bytes: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size_bytes, 0o644
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
