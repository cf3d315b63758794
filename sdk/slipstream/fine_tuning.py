"""Fine-tuning jobs train LoRA adapters on labels, or speculators. Requests and responses are those of OpenAI's API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.adapters import Adapter
from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningJob(Record):
    id: str
    model: str
    status: str  # validating_files, queued, running, paused, succeeded, failed, cancelled
    training_file: str
    validation_file: str | None = None
    fine_tuned_model: str | None = None
    method: Mapping[str, Any]
    turbo: Mapping[str, Any]  # fields that OpenAI lacks: state, pipeline_id, speculator_id, report, ...
    error: Mapping[str, Any] | None = None
    metadata: Mapping[str, str]
    created_at: int
    finished_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningEvent(Record):
    id: str
    level: str  # info, warn, error
    message: str
    type: str  # message, metrics
    data: Mapping[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningCheckpoint(Record):
    id: str
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str
    step_number: int
    metrics: Mapping[str, Any]
    bytes: int | None  # stored; 0 after the deletion; null while the job runs
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningPlan(Record):
    """Whether the training of an adapter fits each kind of device."""

    # device_kind, fits (None: unknown), memory_bytes, parts (bytes needed at least), max_lora_rank
    devices: Sequence[Mapping[str, Any]]


class FineTuningJobs(Resource[D]):
    @procedure
    def create(
        self,
        *,
        model: str,
        training_file: str,
        validation_file: str | None = None,
        suffix: str | None = None,
        seed: int | None = None,
        method: Mapping[str, Any] | None = None,
        turbo: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Steps[FineTuningJob]:
        """Train an adapter on the labels of the file, or a speculator.

        Args:
            method: with `{"type": "supervised"}` and without `turbo`, a LoRA adapter learns the answers of the file.
            turbo: trains a speculator instead of an adapter. The keys `kind`, `hyperparameters`, `held_out`,
                `evaluation`, `gate` and `deploy` mean the same as in a pipeline.
        """
        files = {"training_file": training_file, "validation_file": validation_file}
        options = {"suffix": suffix, "seed": seed, "method": method, "turbo": turbo, "metadata": metadata}
        body = {"model": model, **files, **options}
        return self.http.post(FineTuningJob, "fine_tuning/jobs", body)

    @procedure
    def plan(self, *, model: str, training_file: str, method: Mapping[str, Any] | None = None) -> Steps[FineTuningPlan]:
        """Show the memory that the training of such an adapter needs at least, without creating the job."""
        body = {
            "model": model,
            "training_file": training_file,
            "method": method or {"type": "supervised"},
            "validate_only": True,
        }
        return self.http.post(FineTuningPlan, "fine_tuning/jobs", body)

    @procedure
    def retrieve(self, job_id: str) -> Steps[FineTuningJob]:
        return self.http.get(FineTuningJob, path_of("fine_tuning/jobs", job_id))

    @listing
    def list(self) -> Items[Page[FineTuningJob]]:
        return self.http.pages(FineTuningJob, "fine_tuning/jobs")

    @procedure
    def cancel(self, job_id: str) -> Steps[FineTuningJob]:
        return self.http.post(FineTuningJob, path_of("fine_tuning/jobs", job_id, "cancel"))

    @procedure
    def pause(self, job_id: str) -> Steps[FineTuningJob]:
        """Stop the job within seconds. Finished work is kept; `resume` continues the job."""
        return self.http.post(FineTuningJob, path_of("fine_tuning/jobs", job_id, "pause"))

    @procedure
    def resume(self, job_id: str) -> Steps[FineTuningJob]:
        """Continue the job from its last checkpoint, unless a spend cap has paused it."""
        return self.http.post(FineTuningJob, path_of("fine_tuning/jobs", job_id, "resume"))

    @listing
    def events(self, job_id: str) -> Items[Page[FineTuningEvent]]:
        return self.http.pages(FineTuningEvent, path_of("fine_tuning/jobs", job_id, "events"))

    @listing
    def checkpoints(self, job_id: str) -> Items[Page[FineTuningCheckpoint]]:
        return self.http.pages(FineTuningCheckpoint, path_of("fine_tuning/jobs", job_id, "checkpoints"))

    @procedure
    def delete_checkpoint(self, job_id: str, checkpoint_id: str) -> Steps[None]:
        """Delete the files of a checkpoint of a job that has ended. Adapters that were created from it stay."""
        return self.http.delete(path_of(path_of("fine_tuning/jobs", job_id, "checkpoints"), checkpoint_id))

    @procedure
    def create_adapter(self, job_id: str, checkpoint_id: str, *, name: str | None = None) -> Steps[Adapter]:
        """Create an adapter with the weights of a checkpoint.

        Args: name: by default, the checkpoint's `fine_tuned_model_checkpoint`.
        """
        path = path_of(path_of("fine_tuning/jobs", job_id, "checkpoints"), checkpoint_id, "adapter")
        return self.http.post(Adapter, path, {"name": name})


class FineTuning(Resource[D]):
    """Provides `client.fine_tuning.jobs`, as in the `openai` package."""

    @property
    def jobs(self) -> FineTuningJobs[D]:
        return FineTuningJobs(self.http, self.driver)
