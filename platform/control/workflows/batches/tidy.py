"""Deletes the working files of batches that have ended. After a crash, the next calls delete the remaining files."""

from control.core.storage.backends import get_storage
from control.workflows.batches.models import Batch
from control.workflows.batches.selectors import batches_untidy, batches_with_stray_tokens

BATCHES_A_ROUND = 5


def batches_tidy() -> int:
    """Deletes the stray token files of up to `BATCHES_A_ROUND` batches, and the working files of up to as many batches.

    Returns the number of these batches.

    A batch's row is changed after its files are deleted. After a crash in between, the row therefore still names the
    files, and the next call deletes them.
    """
    storage = get_storage()
    stray = list(batches_with_stray_tokens().order_by("tokens_key")[:BATCHES_A_ROUND])
    for batch in stray:
        storage.delete(batch.tokens_key)
        Batch.objects.filter(pk=batch.pk).update(tokens_key="")
    untidy = list(batches_untidy().select_related("job").order_by("pk")[:BATCHES_A_ROUND])
    for batch in untidy:
        storage.delete(batch.job.params["rows_key"])
        # The folder also has results that were not committed, and the database does not name these files.
        storage.delete_folder(f"jobs/{batch.job_id}/shards")
        Batch.objects.filter(pk=batch.pk).update(has_working_files=False)
    return len(stray) + len(untidy)
