"""The compose file gives no unneeded privileges, contains no secrets, and matches the images and .env.example."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.deploy.chart import ROOT

FOLDER = ROOT / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("slipstream-")}


def test_the_compose_file_defines_exactly_the_expected_services() -> None:
    assert set(OURS) == {"web", "endpoints", "worker", "migrate"}
    assert set(SERVICES) - set(OURS) == {"proxy", "postgres", "redis", "s3", "bucket"}


@pytest.mark.parametrize("name", OURS)
def test_our_services_have_no_unneeded_privileges(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT


@pytest.mark.parametrize("name", SERVICES)
def test_third_party_images_are_pinned(name: str) -> None:
    assert name in OURS or re.search(r":v?\d+\.\d+", SERVICES[name]["image"]), SERVICES[name]["image"]


def test_only_the_proxy_publishes_ports() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]


def test_only_migrations_connect_as_the_owner_of_the_database() -> None:
    users = {name: service["environment"]["SLIPSTREAM_DATABASE_URL"].split(":")[1] for name, service in OURS.items()}
    assert users == dict.fromkeys(OURS, "//slipstream_app") | {"migrate": "//slipstream_owner"}


def test_the_example_file_has_the_variables_that_the_compose_file_requires() -> None:
    required = set(re.findall(r"\$\{(\w+):\?\}", TEXT))
    text = (FOLDER / ".env.example").read_text()
    example, optional = (dict(re.findall(rf"^{mark}(\w+)=(.*)$", text, re.MULTILINE)) for mark in ("", "#"))
    assert required == set(example)
    assert [name for name, value in example.items() if value] == ["PUBLIC_HOST", "MODELS_DIR"]
    assert set(re.findall(r"\$\{(\w+)", TEXT)) - required == {"SLIPSTREAM_VERSION", *optional}


def test_the_configuration_of_s3_is_valid_json() -> None:
    content = yaml.safe_load(TEXT)["configs"]["s3"]["content"]
    identities = json.loads(re.sub(r"\$\{\w+:\?\}", "x", content))["identities"]
    assert identities[0]["name"] == "slipstream"


def test_the_compose_file_matches_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(FOLDER / "compose.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_migrations_wait_for_the_database_roles_and_are_retried() -> None:
    """At its first start, the PostgreSQL image runs roles.sh on a server that listens on a Unix socket only."""
    assert SERVICES["postgres"]["healthcheck"]["test"][:4] == ["CMD", "pg_isready", "-h", "127.0.0.1"]
    assert SERVICES["migrate"]["restart"].startswith("on-failure")


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_an_argument_of_a_process(name: str) -> None:
    """Arguments can be read by every process of the machine."""
    service = SERVICES[name]
    health = service.get("healthcheck", {}).get("test", [])
    words = [*service.get("command", []), *service.get("entrypoint", []), *health]
    assert [word for word in words if re.search(r"PASSWORD|SECRET|TOKEN|KEY", word)] == []


def test_the_script_that_creates_the_roles_passes_no_password_as_an_argument() -> None:
    script, sql, _ = re.split(r"<<'SQL'\n|^SQL$", (FOLDER / "roles.sh").read_text(), flags=re.MULTILINE)
    assert "PASSWORD" not in "".join(line for line in script.splitlines() if not line.startswith("#"))
    assert set(re.findall(r"\\getenv \w+ (\w+)", sql)) == {"OWNER_PASSWORD", "APP_PASSWORD"}


def test_an_upgrade_of_the_gateway_does_not_stop_the_engines_and_the_proxy_holds_requests_meanwhile() -> None:
    assert "network_mode" not in SERVICES["endpoints"], "engines in the network of the gateway's container end with it"
    assert {OURS[name]["environment"]["SLIPSTREAM_ENGINE_HOST"] for name in ("web", "endpoints")} == {"endpoints"}
    (held,) = re.findall(r"lb_try_duration (\d+)s", (FOLDER / "Caddyfile").read_text())
    assert int(held) > int(SERVICES["web"]["stop_grace_period"].removesuffix("s"))
