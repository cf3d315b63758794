"""Tensors in huge pages do not overlap, although several share a memory mapping of 32 MiB."""

import gc

import torch

from kernels.memory import empty


def test_tensors_keep_their_values_when_others_are_written_or_freed() -> None:
    shapes = [(3,), (1000, 7), (4 << 20,), (5, 1), (30 << 20,), (2, 2)]  # 30 << 20 elements exceed a mapping
    tensors = [empty(shape, torch.bfloat16).fill_(index) for index, shape in enumerate(shapes)]
    del tensors[2]
    gc.collect()  # must not free the mapping of 32 MiB, in which there are other tensors
    tensors.insert(2, empty(shapes[2], torch.bfloat16).fill_(2))

    for index, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tuple(tensor.shape) == shape
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert bool((tensor == index).all()), index


def test_tensors_that_need_more_than_one_mapping_do_not_overlap() -> None:
    tensors = [empty((1 << 20,), torch.float32).fill_(index) for index in range(20)]  # 4 MiB each
    assert all(bool((tensor == index).all()) for index, tensor in enumerate(tensors))


def test_an_empty_tensor_needs_no_memory() -> None:
    assert empty((0, 4), torch.float32).shape == (0, 4)
