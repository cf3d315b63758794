"""Fine-tuning of an adapter with a real worker, which is killed during the training."""

from pathlib import PurePath

from control.core.storage.backends import get_storage
from control.models.adapters.models import Adapter
from control.queue.jobs.models import Job
from control.workflows.fine_tuning.adapters import checkpoint_adapter_create
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.schemas import JobInput
from control.workflows.fine_tuning.selectors import CHECKPOINT, job_events_list
from control.workflows.fine_tuning.services import fine_tuning_job_create
from tests.control.factories import make_file
from tests.control.workflows.fine_tuning.test_api import fine_tune_rows
from tests.workers.supervisor.live import LiveStack, kill_9, read_object


def weights_of(adapter: Adapter) -> bytes:
    return read_object(f"{adapter.storage_prefix}/adapter_model.safetensors")


def test_an_adapter_is_trained_after_a_kill_and_each_of_its_checkpoints_can_be_chosen(stack: LiveStack) -> None:
    """The fake child writes adapters whose weights contain the number of the step."""
    file = make_file(stack.organization, fine_tune_rows(), purpose="fine-tune")
    request = JobInput(model=stack.base_model.name, training_file=file.pk, method={"type": "supervised"})
    job = fine_tuning_job_create(organization=stack.organization, request=request)
    assert job.job_id is not None
    worker = stack.start_worker(child="--row-seconds 0.3")
    stack.wait_until(lambda: Job.objects.filter(pk=job.job_id).exclude(checkpoint_key="").exists(), 40)
    kill_9(worker)
    stack.start_worker()

    done = stack.wait_for_job(job.job_id)

    assert done.status == Job.Status.SUCCEEDED, done.error
    assert done.result["resumed_from"] >= 1
    assert done.attempt == 2
    job = FineTuningJob.objects.select_related("adapter", "organization", "base_model", "pipeline").get(pk=job.pk)
    assert job.adapter is not None
    assert job.adapter.name == job.name
    stack.wait_until(lambda: not Job.objects.filter(finished_at__isnull=False, has_stored_work=True).exists(), 20)
    kept = {PurePath(name).name for name in get_storage().sizes(f"jobs/{job.job_id}")}
    assert kept == {"adapter_config.json", "adapter_model.safetensors"}  # and not the state of the training
    checkpoints = list(job_events_list(job, CHECKPOINT).order_by("pk"))
    assert [checkpoint.data["step"] for checkpoint in checkpoints] == [1, 2, 3, 4]
    second = checkpoint_adapter_create(job=job, checkpoint=checkpoints[1], name="second")
    last = checkpoint_adapter_create(job=job, checkpoint=checkpoints[3], name=None)
    assert last.name == f"{job.name}:ckpt-step-4"
    assert weights_of(second)[-1] == 2
    assert weights_of(last)[-1] == weights_of(job.adapter)[-1] == 4
