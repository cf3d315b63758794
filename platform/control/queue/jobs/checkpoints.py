"""Storage prefixes of the checkpoints of jobs."""


def checkpoints_prefix(job_id: str) -> str:
    return f"jobs/{job_id}/checkpoints"


def checkpoint_folder(job_id: str, *, step: int, fence: int) -> str:
    """Returns the storage prefix of a checkpoint. The event of its commit has the step and the fence."""
    return f"{checkpoints_prefix(job_id)}/{step:08d}.{fence}"
