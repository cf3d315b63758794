"""Starts the head of the local Ray cluster: `python -m control.operations.embedded.ray_head ADDRESS_FILE ARGUMENTS`.

A head writes its address into this file. If the head has died and its nodes still run, Ray assumes that the address
belongs to a running head, and refuses to start. This script therefore deletes the file before it starts the head. The
embedded stack never starts two heads at a time.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    Path(sys.argv.pop(1)).unlink(missing_ok=True)
    runpy.run_module("ray.scripts.scripts", run_name="__main__", alter_sys=True)
