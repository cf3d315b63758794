"""Which precision training uses for matrix products."""

import pytest
import torch

from workers.training.preparation import in_bfloat16, is_faster_in_bfloat16


@pytest.mark.parametrize(
    ("processor", "is_faster"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({}, False),
    ],
)
def test_bfloat16_is_the_default_on_processors_that_multiply_faster_in_it(
    processor: dict[str, object], is_faster: bool
) -> None:
    assert is_faster_in_bfloat16(processor) is is_faster


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stated_precision_is_used_on_every_device(device: str) -> None:
    assert in_bfloat16("bfloat16", torch.device(device))
    assert not in_bfloat16("float32", torch.device(device))
