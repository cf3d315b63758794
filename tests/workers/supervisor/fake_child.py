"""A program with the interface of `workers.run` but without a model: `python fake_child.py [OPTIONS] SPEC.json`.

A row with the content "crash" kills the process, and a row with "hang" blocks it forever. The answer to any other
content is the reversed content, so tests can compute the expected output of a batch.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.control.workflows.evaluations.evidence import EXAMPLE, make_evidence
from workers.contracts import (
    BatchSpec,
    Checkpoint,
    EvaluationSpec,
    Event,
    Failed,
    FineTuningSpec,
    Finished,
    Metrics,
    ModelCheckSpec,
    Progress,
    ShardDone,
    TrainingSpec,
    encode_event,
    read_spec,
)

TRAINING_STEPS = 4


def emit(event: Event) -> None:
    print(encode_event(event), flush=True)


def answer_line(job_id: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    content = row["body"]["messages"][0]["content"]
    id_suffix = job_id.rsplit("_", 1)[-1]
    body = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": content[::-1]}}]}
    return {
        "row": number,
        "custom_id": row["custom_id"],
        "ok": True,
        "output": {
            "id": f"batch_req_{id_suffix}_{number}",
            "custom_id": row["custom_id"],
            "response": {"status_code": 200, "request_id": f"req_{id_suffix}_{number}", "body": body},
            "error": None,
            "attempts": row.get("earlier_attempts", 0) + 1,
        },
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [len(content)],
        "finish_reason": "stop",
    }


def run_batch(spec: BatchSpec, row_seconds: float, limit: Path | None) -> None:
    rows = [json.loads(line) for line in Path(spec.input_path).read_text().splitlines()]
    total = sum(shard.row_to - shard.row_from for shard in spec.shards)
    emit(Progress(done=0, total=total, unit="rows"))
    done = 0
    for shard in spec.shards:
        lines = []
        for number in range(shard.row_from, shard.row_to):
            crash_or_hang(rows[number]["body"]["messages"][0]["content"])
            wait_for_permission(limit, number)
            time.sleep(row_seconds)
            lines.append(json.dumps(answer_line(spec.job_id, number, rows[number])))
            done += 1
            emit(Progress(done=done, total=total, unit="rows"))
        path = Path(spec.output_dir) / f"{shard.shard_no}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        usage = {"prompt_tokens": 2 * len(lines), "completion_tokens": len(lines), "total_tokens": 3 * len(lines)}
        emit(ShardDone(shard_no=shard.shard_no, path=str(path), completed=len(lines), failed=0, usage=usage))
    emit(Finished(result={"completed": done}, artifacts={}))


def wait_for_permission(limit: Path | None, number: int) -> None:
    """Waits until the file `limit` has more than `number` bytes. A test allows further rows by extending the file."""
    while limit is not None and number >= limit.stat().st_size:
        time.sleep(0.01)


def crash_or_hang(content: str) -> None:
    if content == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if content == "hang":
        signal.pause()


def run_training(spec: TrainingSpec, row_seconds: float) -> None:
    """Counts steps instead of training. The artifact contains the number of steps that earlier attempts had done."""
    state = Path(spec.checkpoint_dir) / "step"
    first = int(state.read_text()) if state.exists() else 0
    for step in range(first + 1, TRAINING_STEPS + 1):
        time.sleep(row_seconds)
        folder = Path(spec.output_dir) / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "step").write_text(str(step))
        emit(Progress(done=step, total=TRAINING_STEPS, unit="steps"))
        emit(Metrics(step=step, data={"loss": 1 / step}))
        emit(Checkpoint(path=str(folder), step=step))
    artifact = Path(spec.output_dir) / "speculator"
    artifact.mkdir()
    (artifact / "config.json").write_text(json.dumps({"first_step": first, "rows": len(spec.tokens_paths)}))
    emit(Finished(result={"steps": TRAINING_STEPS, "resumed_from": first}, artifacts={"speculator": str(artifact)}))


def run_fine_tuning(spec: FineTuningSpec, row_seconds: float) -> None:
    """Counts steps instead of training. The last byte of an adapter's weights is the number of the step."""
    assert Path(spec.rows_path).read_text()
    state = Path(spec.checkpoint_dir) / "step"
    first = int(state.read_text()) if state.exists() else 0
    for step in range(first + 1, TRAINING_STEPS + 1):
        time.sleep(row_seconds)
        folder = Path(spec.output_dir) / f"checkpoint-{step}"
        write_adapter(folder, step)
        (folder / "step").write_text(str(step))
        emit(Progress(done=step, total=TRAINING_STEPS, unit="steps"))
        emit(Metrics(step=step, data={"loss": 1 / step, "validation_loss": 2 / step}))
        emit(Checkpoint(path=str(folder), step=step))
    write_adapter(Path(spec.output_dir) / "adapter", TRAINING_STEPS)
    result = {"steps": TRAINING_STEPS, "resumed_from": first}
    emit(Finished(result=result, artifacts={"adapter": str(Path(spec.output_dir) / "adapter")}))


def write_adapter(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    header = {
        name.format("A"): {"dtype": "U8", "shape": [1, 8], "data_offsets": [0, 8]},
        name.format("B"): {"dtype": "U8", "shape": [8, 1], "data_offsets": [8, 16]},
    }
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(15) + step.to_bytes(1)
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))


def run_evaluation(spec: EvaluationSpec) -> None:
    assert spec.speculator_dir is not None
    assert (Path(spec.speculator_dir) / "config.json").exists()
    num_rows = len(Path(spec.prompts_path).read_text().splitlines())
    report = {"prompts_held_out": num_rows, "outputs_equal": num_rows, "acceptance_length": 2.0, "speedup": 1.5}
    measured = Path(spec.checkpoint_dir) / "1"
    measured.mkdir()
    (measured / "measurements.json").write_text("{}")
    emit(Checkpoint(path=str(measured), step=1))
    folder = Path(spec.output_dir)
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "evidence.json").write_text(json.dumps(make_evidence(equal=num_rows)))
    (folder / "report.png").write_bytes(b"\x89PNG")
    (folder / "report.svg").write_text("<svg/>")
    (folder / "examples.json").write_text(json.dumps([EXAMPLE]))
    files = {"report": "report.json", "evidence": "evidence.json", "plot": "report.png", "drawing": "report.svg"}
    files["examples"] = "examples.json"
    artifacts = {name: str(folder / file) for name, file in files.items()}
    emit(Progress(done=num_rows, total=num_rows, unit="rows"))
    emit(Finished(result=report, artifacts=artifacts))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row-seconds", type=float, default=0.0)
    parser.add_argument("--limit", metavar="FILE", type=Path, help="answer only as many rows as FILE has bytes")
    parser.add_argument("--die-at-once", action="store_true")
    parser.add_argument("--fail", metavar="CLASS")
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()
    if arguments.die_at_once:
        os.kill(os.getpid(), signal.SIGSEGV)
    if arguments.fail:
        num_rows = 16 if arguments.fail == "out_of_memory" else None
        failed = Failed(
            failure_class=arguments.fail, code="asked_to_fail", message="The test wanted it.", num_rows=num_rows
        )
        emit(failed)
        raise SystemExit(1)
    match read_spec(arguments.spec):
        case BatchSpec() as spec:
            run_batch(spec, arguments.row_seconds, arguments.limit)
        case TrainingSpec() as spec:
            run_training(spec, arguments.row_seconds)
        case FineTuningSpec() as spec:
            run_fine_tuning(spec, arguments.row_seconds)
        case EvaluationSpec() as spec:
            run_evaluation(spec)
        case ModelCheckSpec():
            emit(Finished(result={"perplexity": 12.5, "num_tokens": 170, "num_bytes": 750}, artifacts={}))


if __name__ == "__main__":
    main()
