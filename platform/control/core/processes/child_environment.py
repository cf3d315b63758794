"""The environment variables for processes that run a customer's model: they include no password, key or token."""

import os

_ALLOWED = (
    *(
        "PATH",
        "HOME",
        "USER",
        "TMPDIR",
        "TZ",
        "LANG",
        "LC_",
        "PYTHON",
        "VIRTUAL_ENV",
        "XDG_",
        "LD_",
        "DYLD_",
        "MALLOC_",
    ),
    *("CC", "CXX", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "NCCL_", "TORCH", "TRITON_"),
    # The addresses of experiment trackers. Their credentials are not passed on.
    *("SLIPSTREAM_TRACKERS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"),
    *("HF_HOME", "TOKENIZERS_", "SLIPSTREAM_CPU_KERNELS", "COVERAGE_"),
)  # names of variables, or prefixes of names


def child_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_ALLOWED)}
