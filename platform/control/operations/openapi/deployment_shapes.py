"""What belongs to deployments, as we answer it."""

from typing import Literal

from pydantic import Field

from control.operations.openapi.shapes import Shape, Unix


class AdapterObject(Shape):
    id: str
    object: Literal["adapter"]
    name: str
    model: str
    rank: int
    target_modules: list[str]
    bytes: int
    created_at: Unix


class ServedAdapter(Shape):
    id: str
    name: str
    model: str = Field(description="What callers put into `model`.")


class DeploymentMetrics(Shape):
    """Of one stretch of time; null: nothing was measured that could tell."""

    object: Literal["deployment.metrics"]
    start_time: Unix
    end_time: Unix
    num_requests: int
    prompt_tokens: int
    generation_tokens: int
    tokens_per_second: float | None
    acceptance_length: float | None = Field(description="Tokens a pass of the model: 1 + accepted / drafts.")
    acceptance_rate: float | None = Field(description="Accepted tokens / drafted tokens.")
    latency_seconds: float | None = Field(description="Of a request, on average.")
    time_to_first_token_seconds: float | None = Field(description="On average.")


class DeploymentMetricsPage(Shape):
    object: Literal["page"]
    data: list[DeploymentMetrics]
    has_more: bool
    next_page: str | None
