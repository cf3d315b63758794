"""Client for Slipstream's API: files, batches, pipelines, speculators and deployments.

    from slipstream import Client

    client = Client(base_url="http://127.0.0.1:8000/v1", api_key="sk_live_...")
    prompts = client.files.upload("prompts.jsonl")
    pipeline = client.pipelines.create(name="support", model="smollm2-135m-instruct", prompts_file=prompts.id)
    pipeline = client.pipelines.wait(pipeline.id, on_progress=print)

Chat goes through any OpenAI client with the same base URL and key.
"""

from slipstream.client import Client
from slipstream.errors import (
    APIConnectionError,
    APIError,
    APIResponseError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    BatchFailed,
    ConflictError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    PipelineFailed,
    RateLimitError,
    SlipstreamError,
    UnprocessableEntityError,
    WaitTimeout,
)
from slipstream.types import Batch, BatchError, Deployment, File, Model, Pipeline, Progress, Speculator, Stage

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "Batch",
    "BatchError",
    "BatchFailed",
    "Client",
    "ConflictError",
    "Deployment",
    "File",
    "InternalServerError",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "Pipeline",
    "PipelineFailed",
    "Progress",
    "RateLimitError",
    "SlipstreamError",
    "Speculator",
    "Stage",
    "UnprocessableEntityError",
    "WaitTimeout",
]
