"""The password of the cluster's store is in no command line, which every user of the machine can read."""

from pathlib import Path
from typing import Any

from control.core.settings.config import get_config
from control.operations.embedded.local_ray import LocalRay
from control.operations.embedded.ray_head import PASSWORD_VARIABLE, hiding_password

PASSWORD = "a-b_c"


def test_the_head_gets_the_password_in_a_variable(tmp_path: Path) -> None:
    cluster = LocalRay(config=get_config(), num_nodes=1, port=1, folder=tmp_path)

    node = cluster.head(f"redis://:{PASSWORD}@127.0.0.1:7000/0")

    assert PASSWORD not in " ".join(node.command)
    assert node.variables == {"RAY_REDIS_ADDRESS": "127.0.0.1:7000", PASSWORD_VARIABLE: PASSWORD}
    assert PASSWORD_VARIABLE not in cluster.head(None).variables


def test_the_processes_that_ray_starts_have_no_password_in_their_command_lines() -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(command: list[str], kind: str, *, env_updates: dict[str, Any], fate_share: bool) -> str:
        started.append((command, env_updates))
        return kind

    wrapped = hiding_password(start, PASSWORD)
    gcs = ["gcs_server", "--redis_port=7000", f"--redis_password={PASSWORD}"]
    workers = f"--python_worker_command=worker.py --redis-password={PASSWORD} --x=1"
    raylet = ["raylet", workers, f"--java_worker_command=java -Dray.redis.password={PASSWORD}"]

    assert wrapped(gcs, "gcs", fate_share=True) == "gcs"
    wrapped(raylet, "raylet", fate_share=True, env_updates={"OTHER": "1"})

    assert started == [
        (["gcs_server", "--redis_port=7000", "--fromenv=redis_password"], {"FLAGS_redis_password": PASSWORD}),
        (
            ["raylet", "--python_worker_command=worker.py  --x=1", "--java_worker_command=java "],
            {"OTHER": "1"},
        ),
    ]
