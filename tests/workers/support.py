"""Helpers for the tests of training and inference, which create input rows, record events and run the child process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workers.contracts import Event, Spec, decode_event, write_spec

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """Records the events that a job emits, which a child process would print."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.event == kind]


def chat_row(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    values = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    return {"custom_id": custom_id, "url": "/v1/chat/completions", "body": values | body}


def chat_rows(count: int, **body: Any) -> list[dict[str, Any]]:
    return [chat_row(f"row-{i}", f"What is {i} plus {i * 7}?", **body) for i in range(count)]


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_with_another_end_token(model: Path, folder: Path) -> Path:
    """Copies the model. In the copy, the tokenizer's end token (`<|endoftext|>`) differs from that of config.json."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<|endoftext|>"}))
    return folder


def start_child(spec: Spec, folder: Path) -> subprocess.Popen[str]:
    """Starts the real child process with a pipe as standard output."""
    path = folder / "spec.json"
    write_spec(spec, path)
    return subprocess.Popen(
        [sys.executable, "-m", "workers.run", str(path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_child(spec: Spec, folder: Path) -> tuple[int, list[Event], str]:
    """Runs the real child process. Returns its exit status, its events and its standard error."""
    return end_of(start_child(spec, folder))


def end_of(child: subprocess.Popen[str]) -> tuple[int, list[Event], str]:
    """Waits until a child has ended. Returns its exit status, its events and its standard error."""
    stdout, stderr = child.communicate(timeout=120)
    return child.returncode, [decode_event(line) for line in stdout.splitlines()], stderr


def token_rows(answers: Sequence[Sequence[int]], *, prompt: Sequence[int] = (1, 2, 3)) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"row-{i}",
            "prompt_token_ids": list(prompt),
            "completion_token_ids": list(answer),
            "finish_reason": "length",
        }
        for i, answer in enumerate(answers)
    ]
