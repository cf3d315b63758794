"""The results of the CPU kernels do not depend on the number of threads."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch

from kernels.linear import linear, pack

ROOT = Path(__file__).resolve().parents[2]


def digest() -> str:
    """Computes a chain of 200 products and returns a hash of the result."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 256, generator=generator)
    weights = [pack(torch.randn(256, 256, generator=generator) / 16) for _ in range(4)]
    for _ in range(50):
        for weight in weights:
            x = linear(x, weight)
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()


def test_the_number_of_threads_does_not_change_a_result() -> None:
    command = [sys.executable, "-c", "from tests.kernels.test_pool import digest; print(digest())"]
    processes = {
        number: subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": number}, stdout=subprocess.PIPE, text=True
        )
        for number in ("1", "2", "3", "7")
    }
    digests = {number: process.communicate(timeout=120)[0].strip() for number, process in processes.items()}
    assert digests == dict.fromkeys(processes, digest())
