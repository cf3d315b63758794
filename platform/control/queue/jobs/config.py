"""How patient jobs are, and what runs them; read once from SLIPSTREAM_* like the rest of the settings.

Leases stand in `control.core.settings.config.Config`, because the whole installation must agree on them.
"""

from functools import lru_cache
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class JobConfig(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_", env_ignore_empty=True, frozen=True)

    backoff_seconds: Annotated[float, Field(ge=0)] = 5.0  # first retry; doubles up to backoff_cap_seconds
    backoff_cap_seconds: Annotated[float, Field(ge=0)] = 600.0
    stall_seconds: Annotated[float, Field(gt=0)] = 900.0  # a child that prints nothing for so long is killed
    drain_seconds: Annotated[float, Field(ge=0)] = 10.0  # on SIGTERM: time to finish the running shard
    poll_seconds: Annotated[float, Field(gt=0)] = 0.5  # of the worker that has no Redis
    child_command: str | None = None  # shell-like words before SPEC.json; none: this Python's `-m workers.run`


@lru_cache
def get_job_config() -> JobConfig:
    return JobConfig()
