"""Compares training prompts with held-out prompts, and applies the request's policy to the similar ones.

A speculator is faster on training prompts, and on prompts that are similar to them, than on new prompts. If such
prompts are among the held-out prompts, the evaluation promises too much.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from control.core.api.errors import ApiError
from control.core.storage.staging import staging_folder
from control.data.files.models import File
from control.tenants.quotas.file_work import MAX_TEXT_BYTES, text_size_check
from control.workflows.prompt_files.duplicate_passes import compare_prompts, compare_split, sketch_prompts
from control.workflows.prompt_files.file_pass import file_pass

TRAINING_PARAM = "prompts_file"
_UNREADABLE = (400, 404, 413, 503)  # statuses of files that are refused, deleted or too large, or cannot be read


class OnContamination(StrEnum):
    WARN = "warn"  # the pipeline has the report
    DROP = "drop"  # training leaves the prompts out
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of two files. The paths are in the folder that the caller gave."""

    report: dict[str, Any]  # `exact` and `near`, see `duplicate_passes`, and `num_prompts` of the training file
    lines_path: str  # JSON: the numbers of the lines of contaminated training prompts
    digests_path: str  # the keys of all training prompts, one per line; empty if the files are parts of one file

    @property
    def num_contaminated(self) -> int:
        return int(self.report["exact"]["num_rows"] + self.report["near"]["num_rows"])


def compare_files(training: File, held_out: File, *, folder: Path, param: str) -> Compared:
    """Compares two files. Args: param: the request's parameter that named the held-out file.

    Raises: ApiError: as `file_pass`; 413, a file is too large.
    """
    sketches, lines, digests = (str(folder / name) for name in ("sketches", "contaminated", "digests"))
    for file, file_param in ((held_out, param), (training, TRAINING_PARAM)):
        text_size_check(file.size_bytes, file_param)
    file_pass(held_out, sketch_prompts, param=param, path=sketches)
    report = file_pass(
        training,
        compare_prompts,
        param=TRAINING_PARAM,
        more_bytes=held_out.size_bytes,
        others_path=sketches,
        lines_path=lines,
        digests_path=digests,
    )
    return Compared(report, lines, digests)


def compare_parts(file: File, *, held_out_lines: str, folder: Path) -> Compared:
    """Compares the lines of a file that `held_out_lines` lists with the others. Raises: ApiError: as `file_pass`."""
    lines = str(folder / "contaminated")
    report = file_pass(file, compare_split, param=TRAINING_PARAM, held_out_lines_path=held_out_lines, lines_path=lines)
    return Compared(report, lines, "")


def apply_policy(compared: Compared, policy: OnContamination, *, param: str) -> dict[str, Any]:
    """Returns the report that the pipeline shows: `policy`, `exact`, `near` and `num_dropped`.

    Raises: ApiError: 400, the policy is to refuse contaminated prompts, or dropping them leaves none to train on.
    """
    num, report = compared.num_contaminated, compared.report
    if num and policy == OnContamination.REFUSE:
        message = f"{num} training prompts are like held-out prompts ({report['exact']['num_rows']} exact duplicates)"
        first = (report["exact"]["examples"] or report["near"]["examples"])[0]
        message += f": for example, line {first['line']} is like line {first['other_line']} of the held-out prompts"
        raise ApiError(400, message, "contaminated_held_out", param)
    if num and policy == OnContamination.DROP and num == report["num_prompts"]:
        message = f"{TRAINING_PARAM}: all {num} training prompts are like held-out prompts, so none is left"
        raise ApiError(400, message, "no_training_prompts", TRAINING_PARAM)
    num_dropped = num if policy == OnContamination.DROP else 0
    return {
        "policy": policy.value,
        "num_dropped": num_dropped,
        "exact": report["exact"],
        "near": report["near"],
    }


def contamination_of(training: File, held_out: File, *, param: str) -> dict[str, Any] | None:
    """Returns `exact` and `near`: the training prompts that are like prompts of the other file.

    None: the files cannot be compared. Callers only show the figures, so they accept a request without them.

    Raises: ApiError: 429, too many files are being read.
    """
    try:
        with staging_folder() as folder:
            report = compare_files(training, held_out, folder=folder, param=param).report
    except ApiError as error:
        if error.status in _UNREADABLE:
            return None
        raise
    return {"exact": report["exact"], "near": report["near"]}


def duplicates_of(file: File, *, param: str) -> dict[str, Any] | None:
    """Returns `exact` and `near`: equal and similar prompts of the file. None: the file cannot be read completely.

    Raises: ApiError: 404, the file is deleted; 429, too many files are being read.
    """
    if file.size_bytes > MAX_TEXT_BYTES:
        return None
    try:
        return file_pass(file, sketch_prompts, param=param)
    except ApiError as error:
        if error.status in (400, 503):  # the request reads the file again later, and then reports the problem
            return None
        raise
