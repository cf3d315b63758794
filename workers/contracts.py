"""The messages between the supervisor and the child process. Standard library only.

The supervisor writes a spec as JSON, starts `python -m workers.run SPEC.json`, and reads one JSON event per
line of the child's standard output (standard error is a log). The child uses only local files: the supervisor downloads
the inputs and uploads the files that events name. The child therefore needs no database password and no S3 key.

    {"event": "progress", "done": 12, "total": 160, "unit": "rows"}
    {"event": "metrics", "step": 40, "data": {"loss": 1.9, "acceptance_length": 1.7}}
    {"event": "shard", "shard_no": 3, "path": "...", "completed": 16, "failed": 0, "usage": {...}}
    {"event": "checkpoint", "path": "...", "step": 40}
    {"event": "finished", "result": {...}, "artifacts": {"speculator": "folder", "report": "file"}}
    {"event": "failed", "failure_class": "user_config", "code": "model_not_loadable", "message": "..."}
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

MAX_SHARD_ROWS = 256
# The most rows that a batch without `max_batch_size` answers at once. On CPUs, more than 32 rows hardly increase
# the speed (docs/benchmarks.md); on GPUs, each row takes memory for captured graphs and logits.
MAX_ROWS = {"cpu": 32, "cuda": 256}
EVALUATION_ENGINES = 3  # engines with common weights: plain decoding, suffix decoding alone, the speculator


class FailureClass(StrEnum):
    """The classes of failures, which decide whether a job is retried.

    Only `INFRA` is retried without limit, as long as the job progresses.
    """

    INVALID_INPUT = "invalid_input"
    USER_CONFIG = "user_config"
    INFRA = "infra"
    OUT_OF_MEMORY = "out_of_memory"
    BUG = "bug"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class ContractError(ValueError):
    """A spec or an event does not have the form that this module defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    shard_no: int
    row_from: int
    row_to: int  # exclusive

    def __post_init__(self) -> None:
        if not 0 <= self.row_from < self.row_to:
            raise ContractError(f"shard needs 0 <= row_from < row_to, got {self.row_from}..{self.row_to}")
        if self.row_to - self.row_from > MAX_SHARD_ROWS:
            raise ContractError(f"shard holds at most {MAX_SHARD_ROWS} rows, got {self.row_to - self.row_from}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """A job that answers rows of `input_path` and writes one file per shard into `output_dir`.

    `input_path` holds normalised rows, one JSON object per line: {"custom_id", "url", "body", "earlier_attempts"}; the
    last field is the number of earlier batches that have run the row, and may be absent if it is 0.
    Each shard file is written under a temporary name, synced and renamed before its event is printed. Each line is
    {"row", "custom_id", "ok", "output": <OpenAI batch output row>, "prompt_token_ids", "completion_token_ids",
    "finish_reason", "cut"}; the last four fields exist only if `ok` is true. The id of an output row is
    `batch_req_<the job id after its last underscore>_<row>`.

    `cut` is null if the answer ended before the length limit of its row. Otherwise it is
    {"within": "trace" or "answer", "continued": bool}: `within` says whether the limit fell into the reasoning trace or
    the answer, `continued` whether the answer went on past the limit.
    """

    kind: str = "batch"
    job_id: str
    model_dir: str
    model_name: str
    input_path: str
    output_dir: str
    shards: tuple[ShardRange, ...]
    drafter: str = "ngram"
    speculator_dir: str | None = None
    max_batch_size: int | None = None  # rows that are answered at once; None: as many as fit into the memory
    dtype: str = "auto"
    weights: str = "auto"  # auto, bf16, int8, int4 or fp8, as EngineConfig
    kv_dtype: str = "auto"
    max_context: int | None = None  # tokens of a prompt and its answer; None: as many as the model allows
    memory_bytes: int | None = None  # bytes of the device's memory that the engine may use
    memory_share: float | None = None  # share of the device's memory that the engine may use, instead of `memory_bytes`
    draft_budget: int | None = None  # draft nodes per sequence and step; None: the engine chooses from measured costs
    device: str = "auto"
    adapter_dir: str | None = None  # a LoRA adapter that every answer uses
    continue_cut_answers: bool = False  # whether answers go on past the length limits of their rows
    max_continued_tokens: int | None = None  # limit for a whole continued answer; None: the context's length


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """A job that trains a speculator on answers. It resumes from `checkpoint_dir` if this folder has a checkpoint.

    The files `tokens_paths` hold lines {"custom_id", "prompt_token_ids", "completion_token_ids", "finish_reason"}.
    A line may also have "cut", as in `BatchSpec`.
    `answers_path` holds rows with answers as text instead, which are rendered and tokenized before training: see
    `workers.training.answers`. Such a spec has no `tokens_paths`.
    `hyperparameters` are defined by the method (see workers/hyperparameters); unknown keys are an error.
    `initial_speculator_dir` holds a speculator of the same method, from which training continues.
    `adapter_dir` holds a LoRA adapter with which the answers were generated: the speculator is trained for the model
    with this adapter.
    """

    kind: str = "training"
    job_id: str
    model_dir: str
    target_revision: str
    method: str  # one of workers.kinds.REQUESTED_KINDS
    tokens_paths: tuple[str, ...]
    output_dir: str
    checkpoint_dir: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    initial_speculator_dir: str | None = None
    device: str = "auto"
    drop_cut_answers: bool = False  # whether answers that the length limit ended are left out
    adapter_dir: str | None = None
    answers_path: str | None = None
    with_suffix_decoding: bool = True  # whether suffix decoding is added in serving; used by `auto` only


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningSpec:
    """A job that trains a LoRA adapter on labels. It resumes from `checkpoint_dir` if this folder has a checkpoint.

    The files hold lines {"messages": [...]}. The last message of a line is the label. `hyperparameters` are defined in
    workers/hyperparameters/lora.py. The folder of each `Checkpoint` event also has the adapter's two files.
    """

    kind: str = "fine_tuning"
    job_id: str
    model_dir: str
    target_revision: str
    rows_path: str
    validation_path: str | None
    output_dir: str
    checkpoint_dir: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedArm:
    """A further drafter of an evaluation. The report refers to it by `name`, which is unique among the arms."""

    name: str
    drafter: str
    speculator_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec:
    """A job that answers held-out prompts with and without the speculator, and compares tokens and time.

    It resumes from `checkpoint_dir`. `prompts_path` holds normalised rows as in `BatchSpec`. The job writes
    `report.json`, `report.png`, `report.svg`, `examples.json`, and the contents of a certificate, `evidence.json`, into
    `output_dir`.
    """

    kind: str = "evaluation"
    job_id: str
    model_dir: str
    model_name: str
    prompts_path: str
    output_dir: str
    checkpoint_dir: str
    drafter: str
    speculator_dir: str | None
    concurrencies: tuple[int, ...] = (1,)
    max_tokens: int | None = None  # an upper limit for the `max_tokens` of every row
    repeats: int = 1
    price_per_gpu_hour: float | None = None  # USD
    training_seconds: float | None = None  # worker time that the training took, for the break-even point
    dtype: str = "auto"
    # The options with which the speculator will be served. They mean the same as in `BatchSpec`.
    max_concurrency: int | None = None  # higher concurrencies are refused; None: the highest of `concurrencies`
    weights: str = "auto"
    kv_dtype: str = "auto"
    max_context: int | None = None
    memory_bytes: int | None = None
    memory_share: float | None = None
    draft_budget: int | None = None
    device: str = "auto"
    speculator_name: str = "speculator"  # the speculator's name in the report's `arms` and `pairs`
    compare_with: tuple[ComparedArm, ...] = ()  # the further arms, each with an engine of its own
    adapter_dir: str | None = None  # a LoRA adapter that the answers of all arms use
    reports_arms: bool = False  # whether the report has `arms` and `pairs`


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheckSpec:
    """A job that loads a model and measures its perplexity on a fixed text. The supervisor has checked the files
    before."""

    kind: str = "model_check"
    job_id: str
    model_dir: str
    device: str = "auto"


Spec = BatchSpec | TrainingSpec | FineTuningSpec | EvaluationSpec | ModelCheckSpec
_SPECS: dict[str, type[Spec]] = {
    "batch": BatchSpec,
    "training": TrainingSpec,
    "fine_tuning": FineTuningSpec,
    "evaluation": EvaluationSpec,
    "model_check": ModelCheckSpec,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    event: str = "progress"
    done: int
    total: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    event: str = "metrics"
    step: int
    data: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    event: str = "shard"
    shard_no: int
    path: str
    completed: int
    failed: int
    usage: dict[str, int]  # prompt_tokens, completion_tokens, total_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. The folder `path` stays readable until the next checkpoint event."""

    event: str = "checkpoint"
    path: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    event: str = "finished"
    result: dict[str, Any]
    artifacts: dict[str, str]  # name -> file or folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    event: str = "failed"
    failure_class: str
    code: str
    message: str
    num_rows: int | None = None  # rows that the batch answered at once, if they did not fit into the memory


Event = Progress | Metrics | ShardDone | Checkpoint | Finished | Failed
_EVENTS: dict[str, type[Event]] = {
    "progress": Progress,
    "metrics": Metrics,
    "shard": ShardDone,
    "checkpoint": Checkpoint,
    "finished": Finished,
    "failed": Failed,
}

_Record = TypeVar("_Record")


def _build(record: type[_Record], values: dict[str, Any]) -> _Record:
    names = {f.name for f in fields(record)}  # type: ignore[arg-type]  # every record here is a dataclass
    if unknown := sorted(values.keys() - names):
        raise ContractError(f"{record.__name__} has {sorted(names)}, got also {unknown}")
    try:
        return record(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise ContractError(f"{record.__name__}: {error}") from error


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(folder: Path, files: Iterable[Path], *, digest: Callable[[Path], str] = file_sha256) -> str:
    """Returns a SHA-256 over the files' contents and their paths relative to `folder`.

    The revision of a model is the fingerprint of its `config.json`, followed by its `*.safetensors` sorted by name.

    Args:
        digest: returns the SHA-256 of a file's contents.
    """
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.relative_to(folder).as_posix()}\0{digest(path)}\n".encode())
    return whole.hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Returns all files in the folder and its subfolders, sorted, because `fingerprint` depends on their order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_spec(spec: Spec, path: Path) -> None:
    path.write_text(json.dumps(asdict(spec)))


def read_spec(path: Path) -> Spec:
    """Raises: ContractError: unknown kind, unknown or missing field."""
    values = json.loads(path.read_text())
    if values.get("kind") not in _SPECS:
        raise ContractError(f"kind must be one of {sorted(_SPECS)}, got {values.get('kind')!r}")
    if "shards" in values:
        values["shards"] = [_build(ShardRange, shard) for shard in values["shards"]]
    if "compare_with" in values:
        values["compare_with"] = [_build(ComparedArm, arm) for arm in values["compare_with"]]
    return _build(_SPECS[values["kind"]], values)


def encode_event(event: Event) -> str:
    return json.dumps(asdict(event), separators=(",", ":"), allow_nan=False)


def decode_event(line: str) -> Event:
    """Raises: ContractError: not JSON, or not an event."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ContractError(f"event must be one line of JSON, got {line[:80]!r}") from error
    if not isinstance(values, dict) or values.get("event") not in _EVENTS:
        raise ContractError(f"event must be one of {sorted(_EVENTS)}, got {line[:80]!r}")
    return _build(_EVENTS[values["event"]], values)
