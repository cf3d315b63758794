"""Creates a dataset of each split of a dataset."""

from pathlib import Path

from control.core.api.errors import ApiError
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work, text_size_check
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import split_rows
from control.workflows.datasets.schemas import SplitInput
from control.workflows.datasets.services import dataset_add, file_examined
from control.workflows.prompt_files.file_pass import file_pass

MAX_NAME = Dataset._meta.get_field("name").max_length or 0


@audited("dataset.split", records_itself=True)
def dataset_split(*, dataset: Dataset, request: SplitInput) -> list[Dataset]:
    """Copies the rows of each split to a new file, and creates its dataset, with the base model of `dataset`.

    If `dataset` has a name, the dataset of a split is the next version of `NAME.SPLIT`.

    Raises: ApiError: 400, a split would have no rows or too long a name, or a label cannot be used; 404, the file is
        deleted; 409, the dataset has bad lines; or as `dataset_create`.
    """
    if dataset.status != Dataset.Status.VALID:
        raise ApiError(409, "A dataset with bad lines cannot be split.", "dataset_not_valid", "dataset_id")
    options = request.model_dump()
    with file_work.kept(dataset.organization_id), delete_stored_on_error():
        files = _split_files(dataset, request)
        examined = {name: file_examined(file, dataset.base_model) for name, file in files.items()}
        with change():
            made = [
                dataset_add(
                    file=file_add(file=file),
                    examined=examined[name],
                    name=f"{dataset.name}.{name}" if dataset.name else "",
                    base_model=dataset.base_model,
                    origin={"dataset_id": dataset.pk, "split": name, **options},
                )
                for name, file in files.items()
            ]
            for one in made:
                audit_record("dataset.split", one)
    return made


def _split_files(dataset: Dataset, request: SplitInput) -> dict[str, File]:
    """Returns an unsaved file for each split, in the order of the splits' names."""
    text_size_check(dataset.file.size_bytes, "dataset_id")
    with staging_folder() as folder:
        found = file_pass(
            dataset.file,
            split_rows,
            param="dataset_id" if request.label is None else "label",
            folder=str(folder),
            seed=request.seed,
            shares=request.shares or {},
            label=request.label,
        )
        paths = {name: folder / str(number) for number, name in enumerate(found["splits"])}
        for name, path in paths.items():
            _check_split(dataset, name, path)
        stem = Path(dataset.file.filename).stem
        files = {
            name: file_store(
                organization=dataset.organization,
                filename=f"{stem}.{name}.jsonl",
                purpose=dataset.file.purpose,
                staged=measure(path),
                made_from=dataset.pk,
            )
            for name, path in sorted(paths.items())
        }
    for file in files.values():
        file.project_id = dataset.project_id  # even if the request's key belongs to no project
    return files


def _check_split(dataset: Dataset, name: str, path: Path) -> None:
    if not path.stat().st_size:
        raise ApiError(400, f"The split {name!r} would have no rows.", "empty_split", "shares")
    if dataset.name and len(dataset.name) + 1 + len(name) > MAX_NAME:
        message = f"The name of the split {name!r} would have more than {MAX_NAME} characters."
        raise ApiError(400, message, "invalid_value", "shares")
