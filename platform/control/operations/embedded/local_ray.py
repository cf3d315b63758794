"""A small Ray cluster on this machine, on which `up --cluster` starts engines.

    store (Valkey) → head (GCS, and a raylet without resources) → nodes 127.0.0.2, 127.0.0.3 …

Each node is a raylet with an address of its own and a share of this machine's memory and CUDA devices. All share this
machine's data folder. The store keeps the state of the GCS, so that engines survive the end of the head. The head uses
the machine's own address, because Ray replaces 127.0.0.1 by that address. Clients need the cluster's token to connect.
"""

import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from control.core.processes.ports import free_port
from control.core.settings.config import LOOPBACK, Config
from control.operations.embedded.ray_head import PASSWORD_VARIABLE
from control.serving.deployments.launchers.devices import DEVICES_VARIABLE, cuda_devices
from control.serving.deployments.launchers.ray_cluster import RayLauncher
from control.serving.deployments.models import Replica
from control.serving.deployments.observations import replica_ended

MAX_NODES = 16
_CPUS_PER_NODE = 4  # maximum number of engines on a node; the engines of all nodes share this machine's processors
_OBJECT_STORE_BYTES = 100 * 1024 * 1024  # nearly Ray's minimum, because engines do not use it
_START = ["start", "--block", "--disable-usage-stats", "--log-color=false"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    command: list[str]
    variables: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRay:
    """The commands and variables of the cluster's processes."""

    config: Config
    num_nodes: int
    port: int
    folder: Path  # Ray's files; its path must be short, because paths of Unix sockets begin with it

    @classmethod
    def prepare(cls, config: Config, *, num_nodes: int) -> "LocalRay":
        """Effects: makes the folders, and a token that processes need to use the cluster."""
        name = hashlib.sha256(str(config.data_dir).encode()).hexdigest()[:8]
        cluster = cls(
            config=config, num_nodes=num_nodes, port=free_port(), folder=Path(tempfile.gettempdir()) / f"ray-{name}"
        )
        cluster.delete_files()  # a killed stack has left its files
        cluster.folder.mkdir(mode=0o700)
        cluster._token_path.parent.mkdir(parents=True, exist_ok=True)
        cluster._token_path.unlink(missing_ok=True)
        cluster._token_path.touch(mode=0o600)
        cluster._token_path.write_text(secrets.token_hex(32))
        return cluster

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def store_folder(self) -> Path:
        return self.config.data_dir / "ray" / "store"

    @property
    def _token_path(self) -> Path:
        return self.config.data_dir / "ray" / "token"

    @property
    def variables(self) -> dict[str, str]:
        """Returns the variables of the supervisor and of all processes of Ray."""
        return {
            "SLIPSTREAM_LAUNCHER": RayLauncher.name,
            "SLIPSTREAM_RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_path),
            "RAY_TMPDIR": str(self.folder),  # for the files that Ray writes outside of --temp-dir
            # Otherwise a stopping node waits half a minute for its engines, and the stack does not wait that long.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        }

    def head(self, store_url: str | None) -> Node:
        """Args: store_url: URL of the store. Without a store (None), the cluster ends when the head ends."""
        folder = self.folder / "head"
        program = [sys.executable, "-m", "control.operations.embedded.ray_head", str(folder / "ray_current_cluster")]
        command = [*program, *_START, "--head", f"--port={self.port}", f"--temp-dir={folder}", "--num-cpus=0"]
        command += ["--num-gpus=0", "--include-dashboard=false", *self._sizes(0)]
        variables = {}
        if store_url is not None:
            url = urlsplit(store_url)
            variables = {"RAY_REDIS_ADDRESS": f"{url.hostname}:{url.port}", PASSWORD_VARIABLE: url.password or ""}
        return Node(name="ray-head", command=command, variables=variables)

    def nodes(self) -> Iterator[Node]:
        program = [sys.executable, "-m", "ray.scripts.scripts", *_START]
        devices = cuda_devices(self.config)
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // self.num_nodes
        for number in range(self.num_nodes):
            host, own = f"127.0.0.{number + 2}", devices[number :: self.num_nodes]
            command = [
                *program,
                f"--address={self.address}",
                f"--node-ip-address={host}",
                f"--num-cpus={_CPUS_PER_NODE}",
            ]
            # Nodes that start at once in the same folder would choose the same names for their sockets.
            command += [f"--num-gpus={len(own)}", f"--temp-dir={self.folder / str(number)}"]
            command += self._sizes(memory_bytes)
            yield Node(name=f"ray-{host}", command=command, variables={DEVICES_VARIABLE: ",".join(own)})

    def delete_files(self) -> None:
        for folder in (self.folder, self.store_folder):
            shutil.rmtree(folder, ignore_errors=True)  # `mkdir` fails later if another user has made the folder

    @staticmethod
    def _sizes(memory_bytes: int) -> list[str]:
        return [f"--object-store-memory={_OBJECT_STORE_BYTES}", *([f"--memory={memory_bytes}"] if memory_bytes else [])]


def reason_against(num_nodes: int) -> str | None:
    """Returns why this machine cannot run a cluster of this size; None: it can."""
    if sys.platform != "linux":
        return "--cluster needs Linux, where all addresses of 127.0.0.0/8 belong to the machine"
    if find_spec("ray") is None:
        return "--cluster needs the packages of requirements-ray.txt"
    if not 1 <= num_nodes <= MAX_NODES:
        return f"--cluster must be in 1..{MAX_NODES}, got {num_nodes}"
    return None


def engines_of_ended_cluster_forget() -> None:
    """Records the end of engines that ran on the local Ray cluster of an earlier start, because that cluster has ended.

    Otherwise a start without a cluster would not replace these engines, because they could still run on Ray.
    """
    ended = Replica.objects.filter(launcher=RayLauncher.name, node__startswith="ray:127.").exclude(pid=None)
    for replica in ended.select_related("deployment"):
        replica_ended(replica=replica)
