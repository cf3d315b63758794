"""Builds the evidence of a certificate. It describes an evaluation, and says whether all arms gave equal answers.

The service that signs the certificate adds the organization that owns the speculator. The values of the evidence are
strings, integers, booleans and null. It holds no floats, because JSON can spell the same float in several ways, and the
signed bytes must be reproducible.
"""

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from workers.build import build_identity
from workers.contracts import EvaluationSpec, file_sha256, files_below, fingerprint
from workers.inference.comparison import ArmTotals, Measurement
from workers.inference.report import tokens_by_row
from workers.inference.rows import RowRequest
from workers.kinds import MODEL_AND_ADAPTER

# EQUAL_WITH_ADAPTER: the answers equal the answers of the model with the speculator's own adapter. Some of them differ
# from the answers of the model without this adapter.
EQUAL, EQUAL_WITH_ADAPTER, DIFFERENT = "equal", "equal_with_adapter", "different"


def evidence(
    spec: EvaluationSpec, rows: Sequence[RowRequest], measurements: Sequence[Measurement], report: dict[str, Any]
) -> dict[str, Any]:
    """Returns the contents of evidence.json. Args: report: the report of the measurements."""
    lowest = min(measurements, key=lambda m: m.concurrency)
    speculator = None if spec.speculator_dir is None else Path(spec.speculator_dir)
    held_out, equal = report["prompts_held_out"], report["outputs_equal"]
    return {
        "exact": report["exact"],
        "exact_reason": report["exact_reason"],
        "result": _result(report),
        "equal_to": report["equal_to"],
        "counts": {
            "prompts": held_out,
            "equal": equal,
            "equal_to_model": report["outputs_equal_to_model"],
            "different": held_out - equal,
            "refused": report["rows_refused"],
            "answers": sum(len(arm.answers) for m in measurements for arm in m.arms.values()),
        },
        "prompts": {"sha256": file_sha256(Path(spec.prompts_path)), "count": held_out + report["rows_refused"]},
        "answers": {f"{name}_sha256": answers_sha256(arm) for name, arm in lowest.arms.items()},
        "model_sha256": model_sha256(Path(spec.model_dir)),
        "speculator_sha256": None if speculator is None else fingerprint(speculator, files_below(speculator)),
        "drafter": spec.drafter,
        "sampling": {
            "greedy": sum(row.request.sampling.temperature == 0 for row in rows),
            "sampled": sum(row.request.sampling.temperature != 0 for row in rows),
            "max_tokens": spec.max_tokens,
            "seed_key": spec.job_id,
        },
        "distribution_test": _without_fractions(report["distribution_test"]),
        "runs": {"concurrencies": [m.concurrency for m in measurements], "repeats": spec.repeats},
        "device": {"type": report["device"], "name": device_name(report["device"])},
        "dtype": report["dtype"],
        "weights": report["weights"],
        "engine": report["engine"],
        "system_fingerprint": report["system_fingerprint"],
        "build": build_identity(),
    }


def _without_fractions(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, float) else value for name, value in values.items()}


def _result(report: dict[str, Any]) -> str:
    held_out = report["prompts_held_out"]
    if report["outputs_equal_to_model"] == held_out == report["outputs_equal"]:
        return EQUAL
    is_equal = report["outputs_equal"] == held_out and report["equal_to"] == MODEL_AND_ADAPTER
    return EQUAL_WITH_ADAPTER if is_equal else DIFFERENT


def answers_sha256(arm: ArmTotals) -> str:
    """Returns a SHA-256 over one line per prompt, in the order of the prompts file. A line has the custom_id and the
    token ids of the answer in the first repeat."""
    ids = {answer.request.row.number: answer.request.row.custom_id for answer in arm.answers}
    digest = hashlib.sha256()
    for number, tokens in sorted(tokens_by_row(arm.answers).items()):
        digest.update(f"{ids[number]} {','.join(map(str, tokens))}\n".encode())
    return digest.hexdigest()


def model_sha256(folder: Path) -> str:
    """Returns the SHA-256 that identifies the model's revision. It is computed from the current files."""
    return fingerprint(folder, [folder / "config.json", *sorted(folder.glob("*.safetensors"))])


def device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
