"""Export, import and deletion of speculators with the client and the command, which talk to a fake service."""

import io
import json
import zipfile
from pathlib import Path

import httpx2
import pytest

from slipstream import ConflictError
from tests.sdk.api import ScriptedApi, file_json, ok
from tests.sdk.test_cli import Run, run

SPECULATOR = {
    "id": "spec_1", "object": "speculator", "name": "heads", "version": 1, "kind": "eagle3", "model": "m",
    "status": "ready", "target_revision": "0", "training": {}, "report": {}, "created_at": 1,
}  # fmt: skip

__all__ = ["run"]  # a fixture, which pytest finds here by its name


def test_an_export_returns_a_file(tmp_path: Path) -> None:
    api = ScriptedApi(ok(file_json(id="file-9")))

    file = api.client().speculators.export("spec_1", format="lorax")

    assert file.id == "file-9"
    assert (api.requests[0].url.path, api.body()) == ("/v1/speculators/spec_1/export", {"format": "lorax"})


def test_an_import_sends_file_id_format_model_and_name() -> None:
    api = ScriptedApi(ok(SPECULATOR))

    made = api.client().speculators.import_(file_id="file-1", format="specforge", model="m", name="heads")

    assert made.kind == "eagle3"
    assert api.requests[0].url.path == "/v1/speculators"
    assert api.body() == {"file_id": "file-1", "format": "specforge", "model": "m", "name": "heads"}


def test_deleting_a_speculator_in_use_raises_a_conflict_error() -> None:
    error = {"message": "served", "type": "invalid_request_error", "param": None, "code": "speculator_in_use"}
    api = ScriptedApi(httpx2.Response(409, json={"error": error}))

    with pytest.raises(ConflictError):
        api.client(max_retries=0).speculators.delete("spec_1")

    assert (api.requests[0].method, api.requests[0].url.path) == ("DELETE", "/v1/speculators/spec_1")


def test_the_command_writes_an_export_to_the_given_path(run: Run, tmp_path: Path) -> None:
    api = ScriptedApi(ok(file_json(id="file-9")), httpx2.Response(200, content=b"PK"))

    result = run("speculators", "export", "spec_1", str(tmp_path / "out.zip"), "--format", "medusa", api=api)

    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "out.zip").read_bytes() == b"PK"


def test_an_archive_with_evidence_names_the_evaluation(run: Run, tmp_path: Path) -> None:
    api = ScriptedApi(ok(file_json(id="file-9")), httpx2.Response(200, content=b"PK"))

    result = run("speculators", "archive", "spec_1", str(tmp_path / "a.zip"), "--evaluation", "eval_1", api=api)

    assert result.exit_code == 0, result.stderr
    assert (api.requests[0].url.path, api.body(0)) == ("/v1/speculators/spec_1/archive", {"evaluation_id": "eval_1"})
    assert (tmp_path / "a.zip").read_bytes() == b"PK"


def test_the_command_sends_a_folder_as_an_archive(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "heads"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    api = ScriptedApi(ok(file_json(id="file-9")), ok(SPECULATOR))

    result = run(
        *("--json", "speculators", "import", str(folder), "--format", "specforge", "--model", "m", "--name", "heads"),
        api=api,
    )

    assert json.loads(result.stdout)["id"] == "spec_1"
    content = api.requests[0].content
    archive = zipfile.ZipFile(io.BytesIO(content[content.index(b"PK") :]))
    assert archive.read("config.json") == b"{}"
    assert api.body()["file_id"] == "file-9"


def test_the_command_deletes_a_speculator(run: Run) -> None:
    deleted = ok({"id": "spec_1", "object": "speculator", "deleted": True})

    assert run("speculators", "delete", "spec_1", api=ScriptedApi(deleted)).exit_code == 0
