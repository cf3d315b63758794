"""Records the examples and the error codes of the OpenAPI document while the tests of the control plane run.

    python -m tests.control.record_examples [--model FOLDER] [PATHS OF TESTS]

The command runs the tests. For each operation, it keeps one request with its successful response, and every error code
that the operation returned. With `--model`, the engine's server provides the responses of the gateway's operations and
the errors that the gateway passes on. Add the tests in `tests/control/serving/gateway` for the gateway's own errors.
"""

import argparse
import inspect
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import django
import pytest

from control.operations.openapi.examples import FILE_NAME
from tests.source_tree import ROOT

GATEWAY = ROOT / "platform" / "control" / "serving" / "gateway"
MAX_CHARS = 2_500  # longer examples (request and response together) are not recorded
_SECRET = re.compile(r"(sk_live_|whsec_)[\w+/=-]+")
_MACHINE_PATH = re.compile(r"(/tmp|/root|/home|/work|pytest)")


class Recorder:
    """A pytest plugin that records requests and responses of the API's views."""

    def __init__(self) -> None:
        self.examples: dict[str, dict[str, Any]] = {}
        self.errors: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self.folders: dict[str, Path] = {}  # maps an operation's id to the folder of its view

    def pytest_collection_finish(self) -> None:
        """Makes every view report its responses. Views can be imported only here, after Django was configured."""
        from control.tenants.authentication.views import OrganizationView

        dispatch = OrganizationView.dispatch

        def recording(view: OrganizationView, request: Any, *args: Any, **kwargs: Any) -> Any:
            response = dispatch(view, request, *args, **kwargs)
            self.record(view, response)
            return response

        OrganizationView.dispatch = recording  # type: ignore[assignment,method-assign]
        self._record_refusals_of_gateway()

    def _record_refusals_of_gateway(self) -> None:
        """Makes the gateway report its refusals. Any route may return them, but a free route has no spend cap."""
        from control.operations.openapi.gateway import OPERATIONS
        from control.serving.gateway.wire import WIRES, Wire

        error_body = Wire.error_body

        def recording(wire: Wire, error: Any, *, status: int | None = None) -> dict[str, Any]:
            for path, operation in OPERATIONS.items():
                if status is not None and not (WIRES[path].is_free and error["code"].startswith("spend_cap")):
                    self.folders[operation.id] = GATEWAY
                    self.add_error(operation.id, status, error["code"])
            return error_body(wire, error, status=status)

        Wire.error_body = recording  # type: ignore[assignment,method-assign]

    def add_error(self, operation: str, status: int, code: str) -> None:
        """Adds an error of the operation. Ignores crashes, which tests provoke, and the error for a wrong method."""
        if status not in (405, 500):
            self.errors[operation].add((status, code))

    def record(self, view: Any, response: Any) -> None:
        from control.core.api.operation import operation_of

        method = str(view.request.method)
        declared = operation_of(type(view), method) if hasattr(type(view), method.lower()) else None
        data = getattr(response, "data", None)
        if declared is None or not isinstance(data, dict):
            return
        self.folders[declared.id] = Path(inspect.getfile(type(view))).parent
        if response.status_code >= 400:
            self.add_error(declared.id, response.status_code, str(data["error"]["code"]))
        elif response.status_code == declared.status:
            body = view.request.data if declared.request is not None else None
            self._keep(declared.id, body, data)

    def write(self, folder: Path) -> None:
        """Replaces the examples of the operations that ran, adds their errors, and keeps the rest of the file."""
        path = folder / FILE_NAME
        name = path.relative_to(ROOT)  # raises an error if the views were imported from another checkout
        recorded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        for operation in (name for name, home in self.folders.items() if home == folder):
            errors = [list(error) for error in sorted(self.errors[operation])]
            entry = (
                recorded.get(operation, {}) | self.examples.get(operation, {}) | ({"errors": errors} if errors else {})
            )
            recorded[operation] = entry
        path.write_text(json.dumps(dict(sorted(recorded.items())), indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {len(recorded)} operations")

    def _keep(self, operation: str, request: Any, response: Any) -> None:
        """Keeps the longest example of at most `MAX_CHARS` characters, because it shows the most fields."""
        has_json_body = type(request) is dict  # the data of a form is an instance of a subclass of dict
        example = {"request": request, "response": response} if has_json_body else {"response": response}
        text = json.dumps(example, default=str)
        old = json.dumps(self.examples.get(operation, ""))
        if len(old) < len(text) <= MAX_CHARS and not _MACHINE_PATH.search(text):
            self.examples[operation] = json.loads(_SECRET.sub(r"\1...", text))


def record_engine(model: Path, recorder: Recorder) -> None:
    """Records the gateway's operations: answers and refusals of the engine's server with a real model."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")
    django.setup()
    from control.operations.openapi.gateway import OPERATIONS
    from engine.config import EngineConfig
    from engine.load import load_engine
    from engine.tokenizer import Tokenizer
    from tests.engine.server.live import serve

    messages = [{"role": "user", "content": "What is the capital of France?"}]
    common = {"model": "support", "temperature": 0, "seed": 1}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 16, "return_token_ids": True} | common,
        "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8} | common,
        "/v1/responses": {"input": "What is the capital of France?", "max_output_tokens": 16} | common,
        "/v1/messages": {"messages": messages, "max_tokens": 16, "temperature": 0, "model": "support"},
        "/v1/messages/count_tokens": {"messages": messages, "model": "support"},
    }
    engine = load_engine(model, drafter="suffix", config=EngineConfig(max_batch_size=4))
    with serve(engine, Tokenizer.load(model), model_name="support", max_body_bytes=1 << 20) as live:
        examples = {
            path: {"request": body, "response": _answer(live.http, path, body)} for path, body in bodies.items()
        }
        chat = examples["/v1/chat/completions"]
        audit = {"model": "support", **chat}
        examples["/v1/audit"] = {"request": audit, "response": _answer(live.http, "/v1/audit", audit)}
        for path, example in examples.items():
            operation = OPERATIONS[path].id
            recorder.folders[operation] = GATEWAY
            recorder.examples[operation] = example
            for body in _bodies_to_refuse(example["request"]):
                response = live.http.post(path, json=body)
                if response.status_code >= 400:
                    recorder.add_error(operation, response.status_code, response.json()["error"]["code"])


def _bodies_to_refuse(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns variants of a body. A route accepts some of them and refuses the others."""
    long = "word " * 10_000
    texts = {"messages": [{"role": "user", "content": long}], "prompt": long, "input": long}
    grammar = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    changes: list[dict[str, Any]] = [
        {"no_such_member": 1},
        {"store": True, "prediction": 1},
        {"temperature": 9},
        {"response_format": grammar},
        *({name: texts[name]} for name in body.keys() & texts.keys()),
        *({name: 10**6} for name in body.keys() & {"max_tokens", "max_output_tokens"}),
    ]
    shorter = [{name: value for name, value in body.items() if name != left_out} for left_out in body]
    return [*shorter, *(body | change for change in changes)]


def _answer(http: Any, path: str, body: dict[str, Any]) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a chat model")
    parser.add_argument("tests", nargs="*", help="default: tests of control plane and SDK; with --model, none")
    arguments = parser.parse_args()
    recorder = Recorder()
    tests = arguments.tests or ([] if arguments.model else ["tests/control", "tests/sdk"])
    code = pytest.main(tests, plugins=[recorder]) if tests else 0
    if arguments.model is not None:
        record_engine(arguments.model, recorder)
    for folder in set(recorder.folders.values()):
        recorder.write(folder)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
