"""Renders the Helm chart with every option enabled; `python -m tests.deploy.helm --write` stores it in rendered.yaml.

The tests read only the stored file, so they need no Helm. Its first line has a hash of the chart and the options, so
that a test fails if the file is out of date.
"""

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "slipstream"
OPTIONS = Path(__file__).with_name("every_option.yaml")
RENDERED = Path(__file__).with_name("rendered.yaml")


def first_line() -> str:
    digest = hashlib.sha256()
    for path in (OPTIONS, *sorted(path for path in CHART.rglob("*") if path.is_file())):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
    return f"# Of {digest.hexdigest()}"


def render(helm: str) -> str:
    command = [helm, "template", "slipstream", str(CHART), "--values", str(OPTIONS)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
