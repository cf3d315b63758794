"""Starts the head of the local Ray cluster: `python -m control.operations.embedded.ray_head ADDRESS_FILE ARGUMENTS`.

A head writes its address into this file. If the head has died and its nodes still run, Ray takes the address for that
of a running head and refuses to start. Only one head is started at a time here, so the file is deleted before.

Every user of the machine can read command lines, so the password of the store is in none: this process gets it in a
variable, and passes it on in a variable. Ray itself would write it into the command lines of its processes.
"""

import os
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

PASSWORD_VARIABLE = "SLIPSTREAM_RAY_STORE_PASSWORD"  # noqa: S105  # the name of a variable
_OPTION = "redis_password"  # of the GCS server, which reads options with the library gflags


def without_password(command: Sequence[str], password: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command line of a process of Ray without the password, and the variables that replace it."""
    of_gcs = f"--{_OPTION}={password}"
    variables = {f"FLAGS_{_OPTION}": password} if of_gcs in command else {}
    hidden = [f"--fromenv={_OPTION}" if part == of_gcs else part for part in command]
    # The raylet would give the password to workers, also of C++ and Java. They do not use it: other nodes have none.
    of_workers = re.compile(rf"\S*redis[-._]password={re.escape(password)}")
    return [of_workers.sub("", part) for part in hidden], variables


def hiding_password(start: Callable[..., Any], password: str) -> Callable[..., Any]:
    """Wraps the function of Ray that starts processes."""

    @wraps(start)
    def start_hidden(
        command: Sequence[str], *args: Any, env_updates: Mapping[str, str] | None = None, **rest: Any
    ) -> Any:
        hidden, variables = without_password(command, password)
        return start(hidden, *args, env_updates={**(env_updates or {}), **variables}, **rest)

    return start_hidden


if __name__ == "__main__":
    Path(sys.argv.pop(1)).unlink(missing_ok=True)
    if PASSWORD_VARIABLE in os.environ:
        from ray._private import services

        store_password = os.environ.pop(PASSWORD_VARIABLE)
        sys.argv.append(f"--redis-password={store_password}")  # changes this list, not the process's command line
        services.start_ray_process = hiding_password(services.start_ray_process, store_password)
    runpy.run_module("ray.scripts.scripts", run_name="__main__", alter_sys=True)
