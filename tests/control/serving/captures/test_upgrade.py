"""An upgrade encrypts the requests that earlier releases have captured (migrations 0004 and 0005)."""

import json
import sqlite3
from pathlib import Path

import pytest
from pytest_django import Settings

from control.serving.captures.sealing import Sealer
from tests.control.upgrades import SECRET_KEY, add_row, migrate


@pytest.mark.wide
def test_an_upgrade_encrypts_captured_requests(tmp_path: Path, settings: Settings) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = SECRET_KEY, []
    migrate(tmp_path, "captures", "0003_stop_at_the_storage_limit")
    (path,) = tmp_path.glob("*.sqlite3")
    with sqlite3.connect(path) as database:
        for organization_id in ("1", "2"):
            add_row(database, "accounts_organization", id=organization_id, name=organization_id)
            deployment = f"dep_{organization_id}"
            add_row(database, "catalog_basemodel", id=organization_id, name=organization_id, organization_id=None)
            references = {"organization_id": organization_id, "base_model_id": organization_id}
            add_row(database, "deployments_deployment", id=deployment, name="m", crashes="[]", **references)
            body = json.dumps({"prompt": f"quixotic {organization_id}"})
            values = {"deployment_id": deployment, "organization_id": organization_id, "body": body}
            add_row(database, "captures_capturedrequest", id=int(organization_id), endpoint="/v1/completions", **values)
    database.close()

    migrate(tmp_path, "captures")

    with sqlite3.connect(path) as database:
        database.execute("VACUUM")
        keys = dict(database.execute("SELECT organization_id, encrypted FROM captures_capturekey"))
        rows = database.execute(
            "SELECT organization_id, deployment_id, sealed FROM captures_capturedrequest"
        ).fetchall()
    database.close()
    opened = {
        organization: Sealer(keys[organization]).open(sealed, deployment_id=deployment)
        for organization, deployment, sealed in rows
    }
    assert opened == {"1": {"prompt": "quixotic 1"}, "2": {"prompt": "quixotic 2"}}
    assert b"quixotic" not in path.read_bytes()
