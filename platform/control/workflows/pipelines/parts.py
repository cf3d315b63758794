"""Prepares the files of a new pipeline: the prompts on which a speculator is trained, and those that are held out.

request's files ──> rows with answers ──> scan for secrets and personal data ──> comparison ──> Parts
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.workflows.datasets.answers import answers_file_store
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import PipelineOptions
from control.workflows.prompt_files.contamination import TRAINING_PARAM, OnContamination
from control.workflows.prompt_files.held_out import held_out_key, normalise_held_out, split_prompts
from control.workflows.prompt_files.sensitive import OnSensitive, Scanned, file_scan

_HELD_OUT_PARAM = "held_out_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    prompts: File  # the prompts on which the speculator is trained
    held_out: File
    new_files: Sequence[File] = ()  # unsaved rows
    num_duplicates: int = 0  # held-out rows that are not evaluated
    contamination: Mapping[str, Any] | None
    sensitive: Mapping[str, Any] | None = None  # reports of `file_scan` by the parameters that name the files


def pipeline_parts(
    identity: str, base_model: BaseModel, request: PipelineOptions, prompts: File, named: File | None
) -> Parts:
    """Scans the files if the request says so, separates the held-out prompts, and stores their rows for workers.

    Args: named: the request's file of held-out prompts; None: they are split off `prompts`.
    Raises: ApiError: as `answers_file_store`, `file_scan`, `split_prompts` and `normalise_held_out`.
    """
    if request.answers == Pipeline.Answers.MODEL:
        return _scanned(identity, base_model, request, prompts, named)
    answered = answers_file_store(file=prompts, param=TRAINING_PARAM)
    parts = _scanned(identity, base_model, request, answered, named)
    return replace(parts, new_files=(answered, *parts.new_files))


def _scanned(
    identity: str, base_model: BaseModel, request: PipelineOptions, prompts: File, named: File | None
) -> Parts:
    if request.on_sensitive is None:
        return _separate_held_out(identity, base_model, request, prompts, named)
    policy = OnSensitive(request.on_sensitive)
    given = {TRAINING_PARAM: prompts, _HELD_OUT_PARAM: named}
    scanned: dict[str, Scanned] = {
        param: file_scan(file, policy, param=param) for param, file in given.items() if file is not None
    }
    used = {param: one.file for param, one in scanned.items()}
    parts = _separate_held_out(identity, base_model, request, used[TRAINING_PARAM], used.get(_HELD_OUT_PARAM))
    redacted = [file for one in scanned.values() for file in one.new_files]
    return replace(
        parts,
        new_files=(*redacted, *parts.new_files),
        sensitive={param: scanned[param].report if param in scanned else None for param in given},
    )


def _separate_held_out(
    identity: str, base_model: BaseModel, request: PipelineOptions, prompts: File, named: File | None
) -> Parts:
    """Compares training prompts with held-out prompts, and stores the held-out rows for workers."""
    key, policy = held_out_key(prompts.organization_id, identity), OnContamination(request.on_contamination)
    if named is None:
        split = split_prompts(prompts, held_out=request.held_out, on_contamination=policy)
        normalise_held_out(split.held_out, base_model=base_model, key=key, param=TRAINING_PARAM)
        return Parts(
            prompts=split.prompts,
            held_out=split.held_out,
            new_files=(split.prompts, split.held_out),
            contamination=split.contamination,
        )
    _refuse_same_file(prompts, named)
    stored = normalise_held_out(
        named, base_model=base_model, key=key, training_prompts=prompts, on_contamination=policy
    )
    cleaned = stored.cleaned_prompts
    return Parts(
        prompts=cleaned or prompts,
        held_out=named,
        new_files=() if cleaned is None else (cleaned,),
        num_duplicates=stored.num_duplicates,
        contamination=stored.contamination,
    )


def _refuse_same_file(prompts: File, held_out: File) -> None:
    if prompts.sha256 == held_out.sha256:
        message = f"{_HELD_OUT_PARAM} has the content of the training prompts, so no prompt is held out"
        raise ApiError(400, message, "no_held_out_prompts", _HELD_OUT_PARAM)
