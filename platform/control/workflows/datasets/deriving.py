"""Creates datasets with rows of other datasets: filters and mixes. The recipe is in `origin` of the new dataset.

Files of datasets never change, and the same recipe gives the same rows in the same order. A dataset can therefore be
made again byte for byte. Rows are copied unchanged, so a prompt stays in the split to which its hash assigns it.
"""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.models.catalog.models import BaseModel
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work, text_size_check
from control.workflows.datasets.derived_schemas import FilterInput
from control.workflows.datasets.filter_passes import filter_rows, sampled_rows
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import sample_rows
from control.workflows.datasets.reader import model_reader
from control.workflows.datasets.services import dataset_add, file_examined
from control.workflows.prompt_files.file_pass import file_pass
from control.workflows.prompt_files.validation import MAX_ROWS

_NOT_CONDITIONS = {"name", "rows", "seed", "drop_duplicates"}


@audited("dataset.filter", records_itself=True)
def dataset_filter(*, dataset: Dataset, request: FilterInput) -> Dataset:
    """Creates a dataset of the rows that pass, with the base model of `dataset`.

    Raises: ApiError: 400, no row passes, or tokens cannot be counted; 404, the file is deleted; 409, the dataset has
        bad lines; or as `dataset_create`.
    """
    _check_valid(dataset, "dataset_id")
    recipe = request.model_dump(exclude={"name"})
    with file_work.kept(dataset.organization_id), delete_stored_on_error(), staging_folder() as folder:
        path = folder / "rows"
        tokens = (
            _tokens_of(dataset, folder) if request.min_tokens is not None or request.max_tokens is not None else None
        )
        found = file_pass(
            dataset.file,
            filter_rows,
            param="dataset_id",
            path=str(path),
            conditions=request.model_dump(exclude=_NOT_CONDITIONS),
            seed=request.seed,
            rows=request.rows,
            drop_duplicates=request.drop_duplicates,
            tokens_path=None if tokens is None else str(tokens),
        )
        if not found["num_rows"]:
            raise ApiError(400, "No row of the dataset passes the filter.", "no_rows_left", "dataset_id")
        return _create(
            "dataset.filter",
            file=_stored(dataset, path, "filtered", dataset.project_id, made_from=dataset.pk),
            base_model=dataset.base_model,
            name=request.name or dataset.name,
            origin={"dataset_id": dataset.pk, "filter": recipe},
        )


@audited("dataset.mix", records_itself=True)
def dataset_mix(
    *, sources: Sequence[Dataset], weights: Sequence[float], rows: int | None, seed: int, name: str
) -> Dataset:
    """Creates a dataset with rows of the sources, which alternate in the proportion of the weights.

    If all sources have the same base model, the new dataset has it too. The same holds for their project.

    Args: rows: the number of rows; None: as many as the sources have in this proportion.
    Raises: ApiError: 400, a source is given twice or has too few rows, formats differ, or an id is in two sources; 404,
        a file is deleted; 409, a source has bad lines; or as `dataset_create`.
    """
    _check_sources(sources)
    counts = mix_counts([source.num_rows for source in sources], weights, rows)
    shares = [{"dataset_id": source.pk, "weight": weight} for source, weight in zip(sources, weights, strict=True)]
    with file_work.kept(sources[0].organization_id), delete_stored_on_error(), staging_folder() as folder:
        path = folder / "rows"
        parts = [folder / str(number) for number in range(len(sources))]
        for source, part, count in zip(sources, parts, counts, strict=True):
            file_pass(source.file, sampled_rows, param="sources", path=str(part), rows=count, seed=seed)
        interleave(parts, counts, path)
        projects = {source.project_id for source in sources}
        return _create(
            "dataset.mix",
            file=_stored(sources[0], path, "mixed", projects.pop() if len(projects) == 1 else None),
            base_model=_common_model(sources),
            name=name,
            origin={"mix": {"sources": shares, "rows": sum(counts), "seed": seed}},
        )


def mix_counts(available: Sequence[int], weights: Sequence[float], rows: int | None) -> list[int]:
    """Returns how many rows each source gives. The largest remainders are rounded up.

    Raises: ApiError: 400, a source has too few rows, or the mix would have too many rows or none.
    """
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    if rows is None:
        most = min(num * total / weight for num, weight in zip(available, exact, strict=True))
        rows = min(int(most), MAX_ROWS)
    quotas = [rows * weight / total for weight in exact]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda number: (counts[number] - quotas[number], number))
    for number in by_remainder[: rows - sum(counts)]:
        counts[number] += 1
    for number, (count, num) in enumerate(zip(counts, available, strict=True)):
        if not 1 <= count <= num:
            message = f"sources[{number}] has {num} rows, and the mix of {rows} rows would take {count} of them"
            raise ApiError(400, message, "too_few_rows", "sources")
    return counts


def interleave(parts: Sequence[Path], counts: Sequence[int], path: Path) -> None:
    """Writes the lines of all parts, each in order, so that every section of the file has all parts in proportion.

    Runs in the server's process, because copying at most 50,000 lines takes little time.
    """

    def lines_of(number: int, stack: ExitStack) -> Iterator[tuple[float, int, bytes]]:
        for position, line in enumerate(stack.enter_context(parts[number].open("rb"))):
            yield (2 * position + 1) / (2 * counts[number]), number, line

    with ExitStack() as stack, path.open("wb") as file:
        file.writelines(line for _, _, line in heapq.merge(*(lines_of(number, stack) for number in range(len(parts)))))


def _tokens_of(dataset: Dataset, folder: Path) -> Path:
    """Returns a file with the number of tokens of each row, as JSON; null: the model's template refuses the row.

    Raises: ApiError: 400, there is no tokenizer, or tokenizing takes too long.
    """
    rows, counts, readings = folder / "all_rows", folder / "tokens", None
    if dataset.base_model is not None:
        with model_reader(dataset.organization, dataset.base_model, num_shown=1) as reader:
            file_pass(dataset.file, sample_rows, param="dataset_id", path=str(rows), every=1)
            reader.send(rows)
            readings = reader.readings()
    if readings is None:
        message = "min_tokens and max_tokens need a dataset with a `model` whose tokenizer is on this machine."
        raise ApiError(400, message, "tokenizer_not_available", "model")
    counts.write_text(json.dumps([None if one["error"] else one["num_tokens"] for one in readings]))
    return counts


def _create(event: str, *, file: File, base_model: BaseModel | None, name: str, origin: Mapping[str, Any]) -> Dataset:
    """Saves the file and its dataset. Raises: ApiError: 400, a row is bad: for example, two sources have its id."""
    examined = file_examined(file, base_model)
    if examined.findings.num_errors:
        first = examined.findings.errors[0]
        message = f"line {first['line']} of the new dataset: {first['message']}"
        raise ApiError(400, message, first["code"], "sources")
    with change():
        dataset = dataset_add(
            file=file_add(file=file), examined=examined, name=name, base_model=base_model, origin=origin
        )
        audit_record(event, dataset)
    return dataset


def _stored(source: Dataset, path: Path, what: str, project_id: str | None, *, made_from: str = "") -> File:
    """Stores the rows as a new file. Returns its unsaved row.

    Args: made_from: the id of the source file; empty for a mix, because the column has room for only one id.
    """
    file = file_store(
        organization=source.organization,
        filename=f"{Path(source.file.filename).stem}.{what}.jsonl",
        purpose=source.file.purpose,
        staged=measure(path),
        made_from=made_from,
    )
    file.project_id = project_id
    return file


def _check_valid(dataset: Dataset, param: str) -> None:
    if dataset.status != Dataset.Status.VALID:
        raise ApiError(409, f"The dataset {dataset.pk} has bad lines.", "dataset_not_valid", param)
    text_size_check(dataset.file.size_bytes, param)


def _check_sources(sources: Sequence[Dataset]) -> None:
    for source in sources:
        _check_valid(source, "sources")
    if len({source.pk for source in sources}) < len(sources):
        raise ApiError(400, "sources names a dataset twice; raise its weight instead", "invalid_value", "sources")
    formats = sorted({source.format for source in sources})
    if len(formats) > 1:
        message = f"sources must have the same format, got {', '.join(formats)}"
        raise ApiError(400, message, "mixed_formats", "sources")


def _common_model(sources: Sequence[Dataset]) -> BaseModel | None:
    models = {source.base_model_id for source in sources}
    return sources[0].base_model if len(models) == 1 else None
