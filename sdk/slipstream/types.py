"""The API's objects. Times are Unix seconds. `extra` has the members that this version of the client does not know."""

# long: the records of all resources that several modules of the client return

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from slipstream.records import Record, record


@dataclass(frozen=True, slots=True, kw_only=True)
class File(Record):
    id: str
    filename: str
    bytes: int
    purpose: str
    status: str
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Record):
    id: str
    created: int
    owned_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchError(Record):
    """An error in the input file of a batch. `line` counts from 1, and is None if the error concerns the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.message} [{self.code}]" if self.line else f"{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Record):
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
    usage: Mapping[str, Any] | None = None
    errors_by_code: Mapping[str, int] | None = None  # error code -> number of rows in the error file
    paused: Mapping[str, Any] | None = None  # set while a reached spend cap pauses it; keys: code, message, cap_id
    priority: str = "normal"  # low, normal, high; compared only with other jobs of the organization
    queue_position: int | None = None  # 1 for the job that workers claim next; None: the batch is not waiting
    blocked: Mapping[str, Any] | None = None  # why no worker claims the waiting batch; keys: code, message
    estimated_finished_at: int | None = None  # Unix seconds; set while the batch runs and has committed rows
    cost: Mapping[str, Any] | None = None  # cost so far; keys: value, currency
    quote_id: str | None = None
    engine: Mapping[str, Any] | None = None  # options of the engine
    hardware: str | None = None  # the requested device; None: any device
    resumed_from: str | None = None  # the batch whose finished rows this batch copies
    repair: Mapping[str, Any] | None = None  # which rows of `resumed_from` are answered again; keys: rows, max_tokens
    rows_copied: int = 0  # number of copied rows, which `usage` and `cost` exclude
    truncated: Mapping[str, int] | None = None  # numbers of answers cut by the limits of their rows; set at the end

    @property
    def is_final(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
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
class Progress(Record):
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Record):
    name: str  # distil, train, evaluate, gate, deploy
    status: str  # pending, running, succeeded, failed, skipped, cancelled
    job_id: str | None = None
    paused: Mapping[str, Any] | None = None
    progress: Progress | None = None
    metrics: Mapping[str, Any]
    started_at: int | None = None
    finished_at: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        progress = None if values.get("progress") is None else record(Progress, values["progress"])
        return record(cls, {**values, "progress": progress, "metrics": values.get("metrics") or {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Record):
    id: str
    name: str
    model: str
    status: str  # distilling, training, evaluating, gating, deploying; live, succeeded, rejected, failed, cancelled
    stages: tuple[Stage, ...]
    prompts_file: str
    answers: str = "model"  # or `file`: the rows of prompts_file have answers that were made elsewhere
    held_out_file: str | None = None
    held_out_duplicates: int = 0  # rows of held_out_file that are left out, because they are training prompts
    # training prompts that resemble held-out prompts; keys: exact, near, num_dropped
    contamination: Mapping[str, Any] | None = None
    sensitive: Mapping[str, Any] | None = None  # secrets and personal data, by file
    batch_id: str | None = None
    speculator_id: str | None = None
    deployment_id: str | None = None
    quote_id: str | None = None
    paused: Mapping[str, Any] | None = None  # set while the cap of the quote stops the endpoint
    engine: Mapping[str, Any] | None = None  # options of the engine
    hardware: str | None = None  # the requested device; None: any device
    cost: Mapping[str, Any] | None = None  # cost so far; keys: value, currency
    report: Mapping[str, Any] | None = None  # report of the evaluation; the entry `definitions` explains every figure
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
    def from_json(cls, values: Mapping[str, Any]) -> Self:
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
class Speculator(Record):
    id: str
    name: str
    version: int
    kind: str
    model: str
    base_speculator_id: str | None = None  # set if this object represents a base speculator
    status: str  # training, ready, failed
    target_revision: str  # hash of the weights for which the speculator was trained; it works only with these weights
    training: Mapping[str, Any]
    report: Mapping[str, Any] | None = None
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Record):
    """The capture of a deployment's requests."""

    deployment_id: str
    hours: int  # each request is deleted after this many hours
    sample_percent: float = 100.0  # share of the requests that is stored
    redact: Sequence[str] = ()  # kinds of personal data that are replaced
    redact_patterns: Sequence[str] = ()  # regular expressions whose matches are replaced
    num_requests: int
    oldest_at: int | None = None
    stopped: Mapping[str, str] | None = None  # why no further requests are stored; keys: code, message
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Record):
    """A comparison of answers to held-out prompts with and without a speculator."""

    id: str
    speculator_id: str
    model: str
    status: str  # queued, running, paused, succeeded, failed, cancelled
    prompts_file: str | None = None
    contamination: Mapping[str, Any] | None = None  # prompts on which the speculator was trained; keys: exact, near
    concurrencies: Sequence[int]
    max_tokens: int | None = None
    repeats: int = 1
    price_per_gpu_hour: float | None = None  # USD
    engine: Mapping[str, Any] | None = None  # options of the engine
    hardware: str | None = None  # the requested device; None: any device
    compare_with: Sequence[str] = ()  # further arms; the report then has `arms` and `pairs`
    job_id: str
    progress: Progress | None = None
    metrics: Mapping[str, Any]  # eta_seconds, and the figures of the last concurrency measured
    result: str | None = None  # equal, different
    report: Mapping[str, Any] | None = None  # the entry `definitions` explains every figure
    error_code: str | None = None
    error_message: str | None = None
    cost: Mapping[str, Any] | None = None  # cost so far; keys: value, currency
    created_at: int
    finished_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        progress, error = values.get("progress"), values.get("error") or {}
        return record(
            cls,
            {
                **values,
                "progress": None if progress is None else record(Progress, progress),
                "error_code": error.get("code"),
                "error_message": error.get("message"),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Record):
    id: str
    name: str  # requests send it as `model`
    model: str
    desired_state: str  # running, stopped
    state: str  # provisioning, ready, sleeping, degraded, stopping, stopped, failed
    speculator_id: str | None = None
    adapters: Sequence[Mapping[str, str]] = ()  # keys: id, name, model (the value of `model` in requests)
    remember_answers: bool = True  # whether the engine may draft copies of a project's past answers
    engine: Mapping[str, Any] | None = None  # options of the engine, such as weights and max_concurrency
    hardware: str | None = None  # the requested device; None: any device
    replicas: int = 1  # how many engine processes should answer the requests
    ready_replicas: int = 0
    scaling: Mapping[str, Any] | None = None  # when engines sleep, and how replicas follow traffic
    acceptance_alarm: Mapping[str, Any] | None = None  # reference_minutes
    acceptance: Mapping[str, Any] | None = None  # state (learning, watching, dropped), reference, current
    error_code: str | None = None
    error_message: str | None = None
    blocked: Mapping[str, Any] | None = None  # why a replica waits for a device; keys: code, message
    created_at: int
    healthy_at: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        error = values.get("error") or {}
        return record(cls, {**values, "error_code": error.get("code"), "error_message": error.get("message")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload(Record):
    """A file that is uploaded in parts; `file` is set when the upload is completed."""

    id: str
    filename: str
    bytes: int  # size of the whole file
    purpose: str
    status: str  # pending, completed, cancelled, expired
    created_at: int
    expires_at: int
    file: File | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        file = values.get("file")
        return record(cls, {**values, "file": None if file is None else record(File, file)})


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPart(Record):
    id: str
    upload_id: str
    bytes: int
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """A change of an object's state; fetch the object for details."""

    id: str
    type: str  # batch.completed, job.failed, ...
    object_id: str
    created_at: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        data = values.get("data")
        return record(cls, {**values, **({"object_id": data["id"]} if isinstance(data, dict) and "id" in data else {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Record):
    id: str
    name: str
    hint: str
    scopes: Sequence[str]
    project_id: str | None = None
    member_id: str | None = None
    deployment_ids: Sequence[str] | None = None
    key: str | None = None  # the secret; only in the response to the request that creates or rotates the key
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint(Record):
    id: str
    url: str
    description: str
    events: Sequence[str]
    enabled: bool
    secret: str | None = None  # only in the response to the request that creates or rotates the secret
    disabled_reason: str | None = None  # by_customer, gone, failing
    failing_since: int | None = None
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery(Record):
    id: str
    endpoint_id: str
    event_id: str
    event_type: str
    object_id: str
    status: str  # pending, succeeded, failed
    attempt: int
    history: Sequence[Mapping[str, Any]]  # keys: at, status_code, error, milliseconds
    next_attempt_at: int | None = None
    created_at: int
    finished_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Record):
    start_time: int
    end_time: int
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    cost: Mapping[str, Any]  # keys: value, currency


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(Record):
    """A time interval with OpenAI's result objects, one for each group."""

    start_time: int
    end_time: int
    results: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Record):
    """A whole answer, or a piece of a streamed one."""

    id: str
    model: str
    choices: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None  # keys: speculative_decoding (numbers of drafted and accepted tokens)
    limits: Mapping[str, Any] | None = None  # keys: max_tokens, set_by (what set max_tokens if the request did not)

    @property
    def text(self) -> str:
        """The text of the first choice."""
        choice = self.choices[0] if self.choices else {}
        return choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
