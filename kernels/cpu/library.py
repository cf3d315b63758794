"""Compiles the C kernels on first use and loads them.

The shared library is stored in a cache folder. Its name is a hash of its sources, the compiler and the processor, so a
library that was built from old sources or on another machine is never loaded. Without a C compiler `library()` returns
None, and every operation uses its reference in PyTorch. The reference is slower and rounds differently, but also gives
a row the same bits in any batch.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCES = sorted(_FOLDER.glob("*.c"))
_HEADERS = sorted(_FOLDER.glob("*.h"))
# -ffast-math is not used, because the compiler could then reorder sums differently in each unrolled variant.
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-pthread")

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "slipstream_linear": (*[_POINTER] * 5, *[_LONG] * 3, _INT, _INT, _INT),
    "slipstream_rms_norm": (*[_POINTER] * 3, _LONG, _LONG, _FLOAT, _INT),
    "slipstream_rope_write": (*[_POINTER] * 7, _FLOAT, *[_POINTER] * 2, *[_LONG] * 4, _INT),
    "slipstream_swiglu": (*[_POINTER] * 2, _LONG, _LONG, _INT),
    "slipstream_attention": (
        *(_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER),
        *(_POINTER, _LONG, _LONG, _LONG, _LONG, _INT, _POINTER),
    ),
    "slipstream_decoder": (_POINTER, _POINTER),
    "slipstream_experts": (*[_POINTER] * 5, _LONG, _LONG, _INT),
    "slipstream_add_experts": (*[_POINTER] * 4, *[_LONG] * 3, _INT),
    "slipstream_route": (*[_POINTER] * 3, *[_LONG] * 3, _INT),
    "slipstream_top_k": (*[_POINTER] * 4, *[_LONG] * 3),
    "slipstream_eagle3": (_POINTER, _POINTER),
    "slipstream_eagle3_observe": (_POINTER, _POINTER, _POINTER),
}
# These functions return 0 on success.
_FAILING = (
    "slipstream_attention",
    "slipstream_decoder",
    "slipstream_experts",
    "slipstream_eagle3",
    "slipstream_eagle3_observe",
)


class CompileError(RuntimeError):
    """The compiler failed; the message contains its output."""


def processor() -> str:
    """Returns the model and the instruction sets of this machine's processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def cache_folder(name: str) -> Path:
    """Returns the folder `name` in the part of the user's cache that belongs to Slipstream. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipstream" / name


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        objects = {source: str(Path(folder) / f"{source.name}.o") for source in _SOURCES}
        _run_all([compiler, *_FLAGS, "-c", str(source), "-o", compiled] for source, compiled in objects.items())
        _run_all([[compiler, *_FLAGS, *objects.values(), "-o", str(built), "-lm"]])
        built.rename(target)  # atomic, because processes that start together may all build the same file


def _run_all(commands: Iterable[list[str]]) -> None:
    """Runs the commands in parallel. Raises: CompileError: one of them failed."""
    running = [
        (command, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        for command in commands
    ]
    errors = [process.communicate()[1] for _, process in running]  # waits for all processes before an error is raised
    for (command, process), stderr in zip(running, errors, strict=True):
        if process.returncode != 0:
            raise CompileError(f"{' '.join(command)}\n{stderr[-2000:]}")


def uses_amx() -> bool:
    """Whether the kernels multiply with AMX, which rounds differently. The system may forbid a process to use it."""
    kernels = library()
    return kernels is not None and bool(ctypes.c_int32.in_dll(kernels, "slipstream_uses_amx").value)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the loaded kernels, or None if there is no C compiler, compilation fails, or the kernels are disabled.

    `SLIPSTREAM_CPU_KERNELS=off` disables the kernels. If compilation fails, a warning shows the compiler's output.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("SLIPSTREAM_CPU_KERNELS") == "off" or compiler is None:
        return None
    digest = hashlib.sha256(repr((_FLAGS, compiler, processor())).encode())
    for path in (*_HEADERS, *_SOURCES):
        digest.update(path.read_bytes())
    target = cache_folder("kernels") / f"cpu-{digest.hexdigest()[:20]}.so"
    try:
        if not target.exists():
            _compile(compiler, target)
        loaded = ctypes.CDLL(str(target))
    except (CompileError, OSError) as error:
        warnings.warn(f"CPU kernels are not available, decoding will be slow: {error}", stacklevel=2)
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = _INT if name in _FAILING else None
    return loaded
