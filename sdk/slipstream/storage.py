"""The bytes that the organization stores, and their limit."""

from dataclasses import dataclass

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageUse(Record):
    limit_bytes: int
    used_bytes: int  # the sum of the five parts
    files_bytes: int
    uploads_bytes: int  # parts of uploads that are not completed yet
    adapters_bytes: int
    captures_bytes: int
    checkpoints_bytes: int  # adapters in the checkpoints of fine-tuning jobs that have ended


class StorageLimit(Resource[D]):
    @procedure
    def retrieve(self) -> Steps[StorageUse]:
        return self.http.get(StorageUse, "storage")
