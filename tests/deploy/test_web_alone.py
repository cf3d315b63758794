"""The API, the console and the gateway run with only the files and packages of the web image."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.chart import ROOT

# Blocks imports of packages that the image's requirements do not install. Also blocks imports from the checkout, since
# an editable installation would provide the modules that are not copied into the image.
BLOCKER = """
import importlib.abc, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
absent = frozenset({absent!r})
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def installed_by(*files: str) -> set[str]:
    """Returns the distributions that the requirement files install, including transitive requirements."""
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    pending = [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]
    found: set[str] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if (key := f"{name}[{','.join(sorted(extras))}]") in found:
            continue
        found |= {key, name}
        for text in metadata.requires(name) or ():
            child = Requirement(text)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(child)
    return found


def absent_packages() -> list[str]:
    """Returns the packages that can be imported here but not in the image, except those of this project."""
    installed = installed_by("requirements-web.txt", "requirements-tracing.txt")
    owners = metadata.packages_distributions()
    ours = {"control", "workers", "engine", "kernels", "slipstream", "examples", "benchmarks", "tests"}
    return sorted(
        package
        for package, distributions in owners.items()
        if package not in ours and not {canonicalize_name(name) for name in distributions} & installed
    )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of /app in the web image."""
    folder = tmp_path_factory.mktemp("app")
    for line in re.findall(r"^COPY (?!--from|requirements)(.+)$", _dockerfile(), re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            copied = folder / target
            copied = copied / Path(source).name if target.endswith("/") else copied
            copy: Callable[..., object] = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copied.parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / source, copied)
    (folder / "sitecustomize.py").write_text(BLOCKER.format(absent=absent_packages()))
    return folder


def _dockerfile() -> str:
    return (ROOT / "deploy" / "docker" / "web.Dockerfile").read_text()


def environment_of(folder: Path, data: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLIPSTREAM_", "DJANGO_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(folder), str(folder / "platform"))),
        "DJANGO_SETTINGS_MODULE": "control.core.settings.production",
        "SLIPSTREAM_DATA_DIR": str(data),
        "SLIPSTREAM_SECRET_KEY": "k" * 60,
        "SLIPSTREAM_ALLOWED_HOSTS": "127.0.0.1",
    }


@contextmanager
def web(folder: Path, data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs the image's command on a free port. Yields the process and its URL when the server is ready."""
    environment = environment_of(folder, data)
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=folder, env=environment, check=True, timeout=120,
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = re.findall(r'"([^"]+)"', _dockerfile()[_dockerfile().rindex("\nCMD") :])
    words[words.index("8000")], words[words.index("0.0.0.0")] = str(port), "127.0.0.1"
    with (data / "web.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=environment, stdout=log, stderr=log, text=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while not _answers(f"{url}/readyz"):
            assert process.poll() is None, (data / "web.log").read_text()
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.1)
        yield process, url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


TLS = {"X-Forwarded-Proto": "https"}  # set by the proxy
MAKE_KEY = """
from control.tenants.administration.services import api_key_create, organization_create
from control.tenants.row_security.scope import Across, across_tenants
with across_tenants(Across.COMMAND):
    print(api_key_create(organization=organization_create(name="one"), name="test")[1])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    process: "subprocess.Popen[str]"
    url: str
    headers: dict[str, str]
    log: Path


@pytest.fixture
def served(image: Path, tmp_path: Path) -> Iterator[Served]:
    with web(image, tmp_path) as (process, url):
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", MAKE_KEY]
        environment = environment_of(image, tmp_path)
        created = subprocess.run(command, cwd=image, env=environment, check=True, capture_output=True, text=True)
        headers = {**TLS, "Authorization": f"Bearer {created.stdout.strip()}", "Content-Type": "application/json"}
        yield Served(process=process, url=url, headers=headers, log=tmp_path / "web.log")


def test_the_web_image_lacks_model_packages_but_has_web_packages() -> None:
    absent = set(absent_packages())

    assert {"torch", "transformers", "numpy", "safetensors", "triton", "pytest", "starlette"} <= absent
    assert not absent & {"django", "celery", "opentelemetry", "psycopg", "tokenizers", "unfold"}


def test_the_web_image_serves_without_model_packages_and_finishes_requests_on_sigterm(served: Served) -> None:
    with httpx2.Client(base_url=served.url, headers=served.headers, trust_env=False) as client:
        assert client.get("/v1/models").json()["data"] == []
        assert client.get("/admin/login/").status_code == 200
        body = {"model": "none", "messages": [{"role": "user", "content": "hello"}]}
        assert client.post("/v1/chat/completions", json=body).status_code == 404
    assert httpx2.get(f"{served.url}/v1/models", trust_env=False).status_code == 301, "not redirected to TLS"

    response = post_across_sigterm(served, "/v1/projects", (b'{"name": ', b'"late"}'))

    assert response.status_code == 201
    assert response.json()["name"] == "late"
    assert served.process.wait(30) in (0, -signal.SIGTERM)
    lines = served.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == [], "all lines must be JSON, including uvicorn's"


def post_across_sigterm(served: Served, path: str, parts: tuple[bytes, bytes]) -> httpx2.Response:
    """Posts a body of two parts, and sends SIGTERM to the server between the parts. Returns the response."""
    halfway, terminated = threading.Event(), threading.Event()
    headers = {**served.headers, "Content-Length": str(len(b"".join(parts)))}

    def slow_body() -> Iterator[bytes]:
        yield parts[0]
        halfway.set()
        assert terminated.wait(30)
        time.sleep(0.5)  # well after the signal
        yield parts[1]

    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(
            httpx2.post, f"{served.url}{path}", content=slow_body(), headers=headers, trust_env=False, timeout=60
        )
        assert halfway.wait(30)
        served.process.send_signal(signal.SIGTERM)
        terminated.set()
        return response.result(60)
