"""Settings of jobs: timeouts, retries and the child command. They are read from SLIPSTREAM_* variables, once.

The settings of leases are in `control.core.settings.config.Config`, because other packages use them too.
"""

from functools import lru_cache
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class JobConfig(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_", env_ignore_empty=True, frozen=True)

    # Maximum pause before the first retry. It doubles with every further attempt, up to backoff_cap_seconds.
    backoff_seconds: Annotated[float, Field(ge=0)] = 5.0
    backoff_cap_seconds: Annotated[float, Field(ge=0)] = 600.0
    stall_seconds: Annotated[float, Field(gt=0)] = 900.0  # a child that prints nothing for so long is killed
    drain_seconds: Annotated[float, Field(ge=0)] = 10.0  # on SIGTERM: time to finish the running shard
    poll_seconds: Annotated[float, Field(gt=0)] = 0.5  # interval at which workers without Redis look for due jobs
    child_command: str | None = None  # split like shell words; the path of SPEC.json is appended


@lru_cache
def get_job_config() -> JobConfig:
    return JobConfig()
