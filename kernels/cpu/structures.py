"""The structures of cpu/ops.h, with the same fields in the same order."""

import ctypes

from torch import Tensor

from kernels.linear import LinearWeight

POINTER, LONG = ctypes.c_void_p, ctypes.c_int64


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Linear(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("weight", "scales", "bias")),
        *((name, LONG) for name in ("N", "K", "format")),
    )

    @classmethod
    def of(cls, weight: LinearWeight) -> "Linear":
        addresses = map(address, (weight.data, weight.scales, weight.bias))
        return cls(*addresses, weight.out_features, weight.in_features, weight.format)


class Expert(ctypes.Structure):
    _fields_ = (("gate_up", Linear), ("down", Linear))


class Experts(ctypes.Structure):
    _fields_ = (
        ("experts", POINTER),
        *((name, LONG) for name in ("E", "H", "I")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
        ("dtype", ctypes.c_int32),
    )


class Mixture(ctypes.Structure):
    _fields_ = (("experts", Experts), ("router", Linear), ("K", LONG), ("normalized", LONG))
