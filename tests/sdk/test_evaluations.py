"""The commands `slipstream evaluations`, `slipstream certificates` and `slipstream verify`."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from control.core.certificates import ARCHIVE_FORMAT, certificate_of, public_key_body
from slipstream import EvaluationFailed
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.sdk.api import ScriptedApi, file_json, ok, page
from tests.sdk.test_cli import Run, run

__all__ = ["run"]  # a fixture, which pytest finds here by its name


def evaluation_json(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"id": "eval_1", "object": "evaluation", "status": "queued", "speculator_id": "spec_1"}
    values |= {"model": "tiny", "prompts_file": None, "concurrencies": [1, 4], "job_id": "job_1", "progress": None}
    values |= {"metrics": {}, "result": None, "report": None, "error": None, "created_at": 1, "finished_at": None}
    return values | changes


def test_the_command_evaluates_with_prompts_of_a_local_file_and_waits_for_the_result(run: Run, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("{}\n")
    progress = {"done": 3, "total": 10, "unit": "answers"}
    running = evaluation_json(status="running", progress=progress, metrics={"eta_seconds": 7.0})
    done = evaluation_json(status="succeeded", result="equal", report={"speedup": 1.5})
    api = ScriptedApi(ok(file_json()), ok(evaluation_json()), ok(running), ok(done))
    options = ["--prompts", str(prompts), "--concurrency", "1", "--concurrency", "4", "--price-per-gpu-hour", "2.5"]
    options += ["--compare-with", "spec_2", "--compare-with", "ngram"]

    result = run("--json", "evaluations", "create", "spec_1", *options, "--wait", api=api)

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["report"] == {"speedup": 1.5}
    body = {"speculator_id": "spec_1", "prompts_file": "file-1", "concurrencies": [1, 4], "price_per_gpu_hour": 2.5}
    assert api.body(1) == body | {"compare_with": ["spec_2", "ngram"]}


def test_a_failed_evaluation_has_exit_code_4(run: Run) -> None:
    failed = evaluation_json(status="failed", error={"code": "out_of_memory", "message": "too big"})

    result = run("evaluations", "wait", "eval_1", api=ScriptedApi(ok(failed)))

    assert result.exit_code == 4
    assert "too big [out_of_memory]" in result.stderr
    with pytest.raises(EvaluationFailed), ScriptedApi(ok(failed)).client() as client:
        client.evaluations.wait("eval_1")


def test_evaluations_of_one_speculator_are_listed(run: Run) -> None:
    api = ScriptedApi(page(evaluation_json()))

    assert "eval_1" in run("evaluations", "list", "--speculator-id", "spec_1", api=api).stdout
    assert api.requests[0].url.params["speculator_id"] == "spec_1"


def test_a_certificate_is_downloaded_and_verified_offline(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    certificate = certificate_of(make_evidence())
    assert run("certificates", "verify", str(path)).exit_code == 1  # the service's public key is not stored yet

    assert run("certificates", "key", api=ScriptedApi(ok(public_key_body()))).exit_code == 0
    assert run("evaluations", "certificate", "eval_1", str(path), api=ScriptedApi(ok(certificate))).exit_code == 0

    result = run("--json", "certificates", "verify", str(path))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == make_evidence()


def test_verify_exits_with_1_for_a_forged_certificate_and_4_for_different_answers(run: Run, tmp_path: Path) -> None:
    path, key = tmp_path / "certificate.json", tmp_path / "key.pem"
    key.write_text(public_key_body()["public_key"])
    different = certificate_of(make_evidence(equal=19, different=1))
    path.write_text(json.dumps(different))
    verify = ("certificates", "verify", str(path), "--public-key", str(key))

    result = run(*verify)
    assert result.exit_code == 4
    assert "answers differ" in result.stderr
    path.write_text(json.dumps(different).replace('"result": "different"', '"result": "equal"'))
    assert run(*verify).exit_code == 1
    path.write_text("[]")
    assert run(*verify).exit_code == 1


@pytest.mark.parametrize(("different", "exit_code"), [(0, 0), (1, 4)])
def test_an_archive_is_verified_offline(run: Run, tmp_path: Path, different: int, exit_code: int) -> None:
    path, key = tmp_path / "archive.zip", tmp_path / "key.pem"
    key.write_text(public_key_body()["public_key"])
    weights = hashlib.sha256(b"weights").hexdigest()
    evidence = make_evidence(equal=20 - different, different=different) | {"evaluation_id": "eval_1"}
    evidence["speculator"] = {"sha256": hashlib.sha256(f"heads\0{weights}\n".encode()).hexdigest()}
    certificate = json.dumps(certificate_of(evidence))
    digests = {"certificate.json": hashlib.sha256(certificate.encode()).hexdigest(), "speculator/heads": weights}
    manifest = certificate_of({"evaluation_id": "eval_1", "files": digests}, kind=ARCHIVE_FORMAT)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("certificate.json", certificate)
        archive.writestr("speculator/heads", b"weights")
        archive.writestr("manifest.json", json.dumps(manifest))

    result = run("--json", "verify", str(path), "--public-key", str(key))

    assert result.exit_code == exit_code, result.stderr
    assert json.loads(result.stdout) == evidence
    other = path.with_name("other.zip")
    other.write_bytes(path.read_bytes().replace(b"weights", b"WEIGHTS"))
    assert run("verify", str(other), "--public-key", str(key)).exit_code == 1
