"""The requests, output and exit codes of the command `slipstream`, which talks to a fake service."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from slipstream.cli.main import app
from tests.sdk.api import ScriptedApi, batch_json, deployment_json, failure, file_json, ok, page, pipeline_json
from tests.sdk.test_streams import chunk

Run = Callable[..., Result]


@contextmanager
def served(api: ScriptedApi) -> Iterator[str]:
    """Serves the fake service over HTTP, because the command makes its own client. Yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class requires this name
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            response = api(
                httpx2.Request(self.command, f"http://api.test{self.path}", headers=dict(self.headers), content=body)
            )
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(response.read())

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Returns a function that runs the command, with the fake service `api` if it is given.

    The command must send exactly as many requests as the fake service has responses.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("SLIPSTREAM_BASE_URL", "SLIPSTREAM_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, api: ScriptedApi | None = None, text: str | None = None) -> Result:
        if api is None:
            return CliRunner().invoke(app, list(arguments), input=text)
        with served(api) as url:
            env = {"SLIPSTREAM_BASE_URL": url, "SLIPSTREAM_API_KEY": "sk_live_secret"}
            result = CliRunner().invoke(app, list(arguments), input=text, env=env)
        assert api.is_exhausted
        return result

    return call


def test_without_a_login_the_command_explains_how_to_log_in(run: Run) -> None:
    result = run("files", "list")

    assert result.exit_code == 2
    assert "slipstream login" in result.stderr


def test_only_the_owner_can_read_the_login_file(run: Run, tmp_path: Path) -> None:
    api = ScriptedApi(page(), page(file_json()))

    with served(api) as url:
        assert run("login", "--base-url", url, text="sk_live_secret\n").exit_code == 0
        assert "file-1" in run("files", "list").stdout

    path = tmp_path / "config" / "slipstream" / "login.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert api.requests[1].headers["authorization"] == "Bearer sk_live_secret"


def test_login_does_not_store_a_refused_key(run: Run, tmp_path: Path) -> None:
    result = run("login", api=ScriptedApi(failure(401, "Incorrect API key", code="invalid_api_key")))

    assert (result.exit_code, (tmp_path / "config").exists()) == (1, False)
    assert "Incorrect API key" in result.stderr


def test_a_list_as_json_has_one_object_per_line(run: Run) -> None:
    result = run("--json", "files", "list", api=ScriptedApi(page(file_json(id="file-2"), file_json())))

    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["file-2", "file-1"]


def test_showing_a_missing_object_exits_with_code_3(run: Run) -> None:
    missing = failure(404, "No such File object", code="file_not_found", x_request_id="req_1")

    result = run("--json", "files", "show", "file-x", api=ScriptedApi(missing))

    assert (result.exit_code, result.stdout) == (3, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["request_id"]) == ("file_not_found", "req_1")


def test_the_command_creates_a_batch_from_a_local_file_and_waits_for_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}\n")
    done = batch_json(status="completed", output_file_id="file-9")
    api = ScriptedApi(ok(file_json()), ok(batch_json()), ok(done))

    result = run("--json", "batches", "create", str(path), "--wait", api=api)

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["output_file_id"] == "file-9"
    assert api.body(1)["input_file_id"] == "file-1"


def test_waiting_for_a_failed_batch_exits_with_code_4(run: Run) -> None:
    result = run("batches", "wait", "batch_1", api=ScriptedApi(ok(batch_json(status="failed"))))

    assert result.exit_code == 4
    assert "batch_1 is failed" in result.stderr


def test_the_training_and_the_gate_of_a_pipeline_are_given_as_json(run: Run) -> None:
    api = ScriptedApi(ok(pipeline_json()))
    options = ("--held-out", "32", "--training", '{"kind": "eagle3"}', "--gate", '{"min_speedup": 1.2}')

    result = run("--json", "pipelines", "create", "math", "tiny", "file-1", *options, api=api)

    pipeline = json.loads(result.stdout)
    assert (pipeline["id"], pipeline["stages"][0]["name"]) == ("pipe_1", "distil")
    assert (api.body()["training"], api.body()["gate"]) == ({"kind": "eagle3"}, {"min_speedup": 1.2})


@pytest.mark.parametrize("value", ["{", "[]"])
def test_an_argument_that_is_not_a_json_object_is_a_usage_error(run: Run, value: str) -> None:
    assert run("pipelines", "create", "math", "tiny", "file-1", "--gate", value).exit_code == 2


def test_waiting_for_a_rejected_pipeline_exits_with_code_4(run: Run) -> None:
    error = {"code": "gate_rejected", "message": "speedup 1.1 is below 1.25"}

    result = run("pipelines", "wait", "pipe_1", api=ScriptedApi(ok(pipeline_json(status="rejected", error=error))))

    assert result.exit_code == 4
    assert "speedup 1.1 is below 1.25 [gate_rejected]" in result.stderr


def test_a_streamed_answer_is_not_interpreted_as_markup(run: Run) -> None:
    body = chunk("[red]vi") + chunk("er[/]") + b"data: [DONE]\n\n"
    api = ScriptedApi(httpx2.Response(200, content=body))

    assert run("chat", "math", api=api, text="2+2?").stdout == "[red]vier[/]\n"
    assert api.body()["messages"] == [{"role": "user", "content": "2+2?"}]


def test_an_audit_shows_each_verdict_and_exits_with_code_4_if_an_answer_differs(run: Run, tmp_path: Path) -> None:
    line = {"request": {"prompt": "x"}, "response": {"choices": [{"token_ids": [1]}], "system_fingerprint": "fp1"}}
    file = tmp_path / "answers.jsonl"
    file.write_text(f"{json.dumps(line)}\n" * 2)
    verdict = {"object": "audit", "system_fingerprint": "fp1.a", "choices": [{"index": 0, "verdict": "equal"}]}
    equal = ok({**verdict, "verdict": "equal"})
    difference = {"index": 0, "verdict": "different", "differs": "token", "position": 7, "expected": 3, "actual": 4}
    different = ok({**verdict, "verdict": "different", "choices": [difference]})
    parts = [{"part": "build", "expected": "a", "actual": "b"}]
    mismatch = ok({"object": "audit", "system_fingerprint": "fp1.a", "verdict": "fingerprint_mismatch", "parts": parts})

    api = ScriptedApi(equal, equal)
    assert run("audit", "math", str(file), api=api).exit_code == 0
    assert api.body() == {"model": "math", **line}

    result = run("--json", "audit", "math", str(file), api=ScriptedApi(different, mismatch))
    assert result.exit_code == 4
    shown = [json.loads(text) for text in result.stdout.splitlines()]
    assert (shown[0]["verdict"], shown[0]["position"], shown[0]["expected"]) == ("different", 7, 3)
    assert (shown[1]["line"], shown[1]["verdict"], shown[1]["parts"]) == (2, "fingerprint_mismatch", "build")


def test_the_command_stops_a_deployment(run: Run) -> None:
    api = ScriptedApi(ok(deployment_json(desired_state="stopped")))

    assert "stopped" in run("deployments", "stop", "dep_1", api=api).stdout
    assert api.requests[0].url.path == "/v1/deployments/dep_1/stop"


def test_the_results_of_a_batch_are_printed_as_json_lines(run: Run) -> None:
    row = {"custom_id": "1", "response": None}

    result = run("batches", "results", "batch_1", api=ScriptedApi(httpx2.Response(200, text=json.dumps(row) + "\n")))

    assert json.loads(result.stdout) == row


def test_a_download_that_cannot_be_written_is_reported_without_a_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = run("files", "download", "file-1", str(tmp_path / "file" / "below"), api=ScriptedApi())

    assert (result.exit_code, "Traceback" in result.output) == (1, False)


def test_a_file_larger_than_one_part_is_sent_as_a_resumable_upload(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.cli.common.PART_BYTES", 2)  # the threshold; this file still has one part
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    upload = {"id": "upload_1", "filename": "a.jsonl", "bytes": 3, "purpose": "batch", "created_at": 1, "expires_at": 2}
    pending, done = upload | {"status": "pending"}, upload | {"status": "completed", "file": file_json()}
    part = {"id": "part_1", "upload_id": "upload_1", "bytes": 3, "created_at": 1}
    api = ScriptedApi(ok(pending), ok(pending), page(), ok(part), ok(done))

    result = run("--json", "files", "upload", str(path), api=api)

    assert (json.loads(result.stdout)["id"], result.exit_code) == ("file-1", 0)
    assert "--resume upload_1" in result.stderr
    assert api.body()["part_ids"] == ["part_1"]


def test_an_interrupted_command_exits_with_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.cli.main.time.time", interrupt)

    assert run("usage", api=ScriptedApi()).exit_code == 130
