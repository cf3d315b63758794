"""The API's objects. Times are Unix seconds; what is absent is None; fields unknown to this version are left out."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from slipstream.errors import APIResponseError

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    id: str
    filename: str
    bytes: int
    purpose: str
    status: str
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    created: int
    owned_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchError:
    """A line of the input file that cannot be answered; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.message} [{self.code}]" if self.line else f"{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    id: str
    status: str
    endpoint: str
    input_file_id: str
    created_at: int
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[BatchError, ...] = ()
    num_rows: int = 0  # 0 until the file has been read
    num_completed: int = 0
    num_failed: int = 0
    metadata: Mapping[str, str] | None = None

    @property
    def is_final(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Batch":
        counts = values.get("request_counts") or {}
        errors = tuple(record(BatchError, error) for error in (values.get("errors") or {}).get("data") or ())
        return record(
            cls,
            {
                **values,
                "errors": errors,
                "num_rows": counts.get("total", 0),
                "num_completed": counts.get("completed", 0),
                "num_failed": counts.get("failed", 0),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str  # distil, train, evaluate, gate, deploy
    status: str  # pending, running, succeeded, failed, skipped, cancelled
    job_id: str | None = None
    progress: Progress | None = None
    metrics: Mapping[str, Any]
    started_at: int | None = None
    finished_at: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Stage":
        progress = values.get("progress")
        parsed = None if progress is None else record(Progress, progress)
        return record(cls, {**values, "progress": parsed, "metrics": values.get("metrics") or {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    id: str
    name: str
    model: str
    status: str  # distilling, training, evaluating, gating, deploying; live, succeeded, rejected, failed, cancelled
    stages: tuple[Stage, ...]
    prompts_file: str
    held_out_file: str | None = None
    batch_id: str | None = None
    speculator_id: str | None = None
    deployment_id: str | None = None
    report: Mapping[str, Any] | None = None  # of the evaluation; its `definitions` explain every figure
    error_code: str | None = None
    error_message: str | None = None
    created_at: int
    finished_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.status in ("live", "succeeded", "rejected", "failed", "cancelled")

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Pipeline":
        error = values.get("error") or {}
        return record(
            cls,
            {
                **values,
                "stages": tuple(Stage.from_json(stage) for stage in values.get("stages") or ()),
                "error_code": error.get("code"),
                "error_message": error.get("message"),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculator:
    id: str
    name: str
    version: int
    kind: str
    model: str
    status: str  # training, ready, failed
    target_revision: str  # hash of the model it was trained for; it serves no other
    training: Mapping[str, Any]
    report: Mapping[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    id: str
    name: str  # what callers put into `model`
    model: str
    desired_state: str  # running, stopped
    state: str  # provisioning, ready, degraded, stopping, stopped, failed
    speculator_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    created_at: int
    healthy_at: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Deployment":
        error = values.get("error") or {}
        return record(cls, {**values, "error_code": error.get("code"), "error_message": error.get("message")})


def record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Raises: APIResponseError: a field that has to be there is not."""
    known = fields(kind)  # type: ignore[arg-type]  # every record here is a dataclass
    if missing := [field.name for field in known if field.default is MISSING and field.name not in values]:
        got = ", ".join(sorted(values)) or "nothing"
        raise APIResponseError(f"{kind.__name__} needs {', '.join(missing)}, got {got}")
    return kind(**{field.name: values[field.name] for field in known if field.name in values})
