"""What of our environment a process that runs a customer's model gets: no password, key or token of ours."""

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
    # where metrics go; who may write there is not for a child to know, so without credentials
    *("SLIPSTREAM_TRACKERS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"),
    *("HF_HOME", "TOKENIZERS_", "SLIPSTREAM_CPU_KERNELS", "COVERAGE_"),
)  # names, or how they begin


def child_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_ALLOWED)}
