"""Client for Slipstream's API.

    from slipstream import Client

    client = Client(base_url="http://127.0.0.1:8000/v1", api_key="sk_live_...")
    prompts = client.files.upload("prompts.jsonl")
    pipeline = client.pipelines.create(name="support", model="smollm2-135m-instruct", prompts_file=prompts.id)
    pipeline.wait()
    print(client.chat.create(model="support", messages=[{"role": "user", "content": "Hello"}]).text)

`AsyncClient` has the same methods as coroutines.
"""

from slipstream.account import LedgerLine
from slipstream.adapters import Adapter
from slipstream.audits import Audit
from slipstream.catalog import BaseModel, BaseSpeculator
from slipstream.client import AsyncClient, Client
from slipstream.datasets import Dataset, Quote
from slipstream.deployments import DeploymentMetrics
from slipstream.distillations import Distillation
from slipstream.drivers import AsyncListing, Listing, Page, RawResponse
from slipstream.errors import (
    APIConnectionError,
    APIError,
    APIResponseError,
    APIStatusError,
    APIStreamError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    BatchFailed,
    CertificateError,
    ConflictError,
    EvaluationFailed,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    PipelineFailed,
    RateLimitError,
    SlipstreamError,
    UnprocessableEntityError,
    UploadError,
    WaitTimeout,
    WebhookError,
)
from slipstream.fine_tuning import FineTuningCheckpoint, FineTuningEvent, FineTuningJob, FineTuningPlan
from slipstream.hardware import Hardware
from slipstream.invoices import Invoice
from slipstream.jobs import Job, JobEvent
from slipstream.lineage import Lineage
from slipstream.loops import Loop, LoopRound
from slipstream.messages import Message, MessageTokens
from slipstream.offboarding import OrganizationDeletion, OrganizationExport
from slipstream.organization import AuditEvent, AuditExport, Member, Project
from slipstream.pipelines import PipelineRun
from slipstream.plans import DevicePlan, EnginePlan, PipelinePlan
from slipstream.responses import Response
from slipstream.rollouts import Rollout
from slipstream.spending import SpendCap, SpendingThresholds
from slipstream.storage import StorageUse
from slipstream.types import (
    ApiKey,
    Batch,
    BatchError,
    Bucket,
    Capture,
    Completion,
    Deployment,
    Evaluation,
    Event,
    File,
    Model,
    Pipeline,
    Progress,
    Speculator,
    Stage,
    Upload,
    UploadPart,
    Usage,
    WebhookDelivery,
    WebhookEndpoint,
)

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseError",
    "APIStatusError",
    "APIStreamError",
    "APITimeoutError",
    "Adapter",
    "ApiKey",
    "AsyncClient",
    "AsyncListing",
    "Audit",
    "AuditEvent",
    "AuditExport",
    "AuthenticationError",
    "BadRequestError",
    "BaseModel",
    "BaseSpeculator",
    "Batch",
    "BatchError",
    "BatchFailed",
    "Bucket",
    "Capture",
    "CertificateError",
    "Client",
    "Completion",
    "ConflictError",
    "Dataset",
    "Deployment",
    "DeploymentMetrics",
    "DevicePlan",
    "Distillation",
    "EnginePlan",
    "Evaluation",
    "EvaluationFailed",
    "Event",
    "File",
    "FineTuningCheckpoint",
    "FineTuningEvent",
    "FineTuningJob",
    "FineTuningPlan",
    "Hardware",
    "InternalServerError",
    "Invoice",
    "Job",
    "JobEvent",
    "LedgerLine",
    "Lineage",
    "Listing",
    "Loop",
    "LoopRound",
    "Member",
    "Message",
    "MessageTokens",
    "Model",
    "NotFoundError",
    "OrganizationDeletion",
    "OrganizationExport",
    "Page",
    "PermissionDeniedError",
    "Pipeline",
    "PipelineFailed",
    "PipelinePlan",
    "PipelineRun",
    "Progress",
    "Project",
    "Quote",
    "RateLimitError",
    "RawResponse",
    "Response",
    "Rollout",
    "SlipstreamError",
    "Speculator",
    "SpendCap",
    "SpendingThresholds",
    "Stage",
    "StorageUse",
    "UnprocessableEntityError",
    "Upload",
    "UploadError",
    "UploadPart",
    "Usage",
    "WaitTimeout",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookError",
]
