"""Creates and cancels distillations. The underlying batch does the work."""

from collections.abc import Mapping

from control.core.transactions import change
from control.data.files.models import File
from control.data.files.selectors import batch_file_check
from control.models.catalog.models import BaseModel
from control.models.engines.schemas import EngineOptions
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel, batch_create
from control.workflows.distillations.models import Distillation
from control.workflows.prompt_files.contamination import duplicates_of
from control.workflows.prompt_files.held_out import endpoint_of
from control.workflows.quotes.models import Quote


@audited("distillation.create", records_itself=True)
def distillation_create(
    *,
    organization: Organization,
    base_model: BaseModel,
    prompts_file: File,
    quote: Quote | None = None,
    metadata: Mapping[str, str] | None = None,
    on_truncation: str = Batch.OnTruncation.KEEP,
    max_continued_tokens: int | None = None,
    engine: EngineOptions | None = None,
    hardware: str = "",
) -> Distillation:
    """Lets the model answer the prompts and keeps the token ids. Raises: ApiError: as `batch_create`."""
    endpoint = endpoint_of(batch_file_check(prompts_file, param="prompts_file"))
    duplicates = duplicates_of(prompts_file, param="prompts_file")
    with change():
        batch = batch_create(
            organization=organization,
            input_file=prompts_file,
            endpoint=endpoint,
            model=base_model.name,
            metadata=metadata,
            quote=quote,
            on_truncation=on_truncation,
            max_continued_tokens=max_continued_tokens,
            engine=engine,
            hardware=hardware,
        )
        distillation = Distillation.objects.create(organization=organization, batch=batch, duplicates=duplicates)
        audit_record("distillation.create", distillation)
    return distillation


@audited("distillation.cancel")
def distillation_cancel(*, distillation: Distillation) -> None:
    """Cancels the distillation. Its answers so far are kept for training. Raises: ApiError: 400, it has ended."""
    batch_cancel(batch=distillation.batch)
