"""Configuration, read once from the environment into a frozen object: `SLIPSTREAM_DATA_DIR` becomes `data_dir`."""

import base64
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from control.core.sqlite.turns import MAX_WAIT_SECONDS
from workers.contracts import MAX_SHARD_ROWS

MIB = 1024 * 1024
LOOPBACK = "127.0.0.1"


class StatedDevice(BaseModel):
    """A device that the operators state for jobs and endpoints. It need not exist, so tests can simulate devices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["cpu", "cuda"]
    index: Annotated[int, Field(ge=0, le=32_767)] = 0  # its number among the machine's devices of this kind, as in CUDA
    model: Annotated[str, Field(max_length=80)] = ""
    memory_bytes: Annotated[int, Field(ge=1)]
    price_per_hour: Annotated[float, Field(ge=0, le=1_000_000)] | None = None  # USD; None: the price of the kind


class Config(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_", env_ignore_empty=True, frozen=True, populate_by_name=True
    )

    data_dir: Path = Path("var")  # database, storage folder, logs and work folders of the embedded stack
    database_url: SecretStr | None = None  # postgresql://user:password@host/name; none: SQLite in data_dir
    # The PostgreSQL role of the running service. It does not own the tables; `migrate` grants it access to their rows.
    database_role: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")] = "slipstream_app"
    redis_url: SecretStr | None = None  # none: workers poll the database
    s3_bucket: str | None = None  # none: objects are stored in a folder in data_dir
    s3_endpoint_url: str | None = None  # none: AWS

    lease_seconds: Annotated[float, Field(gt=0)] = 30.0
    renew_seconds: Annotated[float, Field(gt=0)] = 2.0  # also the delay until a cancellation is noticed
    reconcile_seconds: Annotated[float, Field(gt=0)] = 5.0
    shard_rows: Annotated[int, Field(ge=1, le=MAX_SHARD_ROWS)] = 16

    max_upload_bytes: Annotated[int, Field(ge=1)] = 512 * MIB
    # Limit for the size of a speculator or adapter that is copied or converted within a request.
    max_weights_bytes: Annotated[int, Field(ge=1)] = 2048 * MIB
    max_body_bytes: Annotated[int, Field(ge=1)] = 8 * MIB  # limit for requests that are not uploads
    # Default limits of one organization; `control.tenants.quotas.models.Limits` overrides them.
    max_queued_jobs: Annotated[int, Field(ge=0)] = 1_000
    max_running_jobs: Annotated[int, Field(ge=1)] | None = None  # none: no limit
    max_deployments: Annotated[int, Field(ge=0)] = 32
    # Devices that the jobs and endpoints of one organization may hold at once. Each process of a deployment or canary
    # occupies one; a job holds one only if devices are stated.
    max_devices: Annotated[int, Field(ge=0)] = 16
    # for files, upload parts, adapters and captured requests
    max_storage_bytes: Annotated[int, Field(ge=0)] = 1024 * 1024 * MIB
    requests_per_minute: Annotated[int, Field(ge=0)] = 6_000  # 0: no limit
    # Requests to models that one organization may have in progress in each process of the gateway, streamed or not.
    max_open_completions: Annotated[int, Field(ge=1)] = 512

    # How long the owners of an organization can cancel its deletion. Then all its rows and stored objects are deleted.
    deletion_grace_hours: Annotated[float, Field(ge=1, le=90 * 24)] = 7 * 24

    # Comma-separated folders and s3://bucket/prefix from which customers may register models; `{organization}` stands
    # for the id of the caller's organization. Empty: customers may not register models.
    model_roots: str = ""
    max_model_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * MIB
    # Limit in bytes for the copies of models from S3, speculators and adapters on each machine. When it is exceeded,
    # copies that are not in use are deleted, the least recently used first. Earlier releases used the second name.
    node_cache: Annotated[int, Field(ge=0)] = Field(
        default=1024 * 1024 * MIB,
        validation_alias=AliasChoices("SLIPSTREAM_NODE_CACHE", "SLIPSTREAM_MAX_MODEL_COPIES_BYTES"),
    )
    # Limit for the home folders of engine users on each machine. When it is exceeded, homes that no process uses are
    # deleted, the least recently used first.
    max_engine_homes_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * MIB
    # A model is refused if its loss on an English test text exceeds this limit: see models/catalog/plausibility.py.
    max_model_bits_per_byte: Annotated[float, Field(gt=0, le=40)] = 2.4

    secret_key: SecretStr | None = None
    secret_key_fallbacks: SecretStr = SecretStr("")  # earlier keys, comma-separated, which only decrypt and verify
    allowed_hosts: str = "localhost,127.0.0.1,[::1]"  # comma-separated
    device: str = "auto"
    # The devices that workers lease for jobs and supervisors lease for endpoints: one job or replica per device. If it
    # is empty, each worker runs any job on its own device, and `endpoint_devices` names the devices of endpoints.
    devices: tuple[StatedDevice, ...] = ()
    # Comma-separated CUDA devices, as in CUDA_VISIBLE_DEVICES. Each endpoint gets one of them for itself, without a
    # lease. If it is None, endpoints lease the devices in `devices`. If those are empty too, endpoints use the
    # supervisor's CUDA_VISIBLE_DEVICES or, if this is not set, all CUDA devices of the machine.
    endpoint_devices: str | None = None
    # Memory of the device that each endpoint may use. None: nearly all of a GPU; on a CPU, the weights plus 1 GiB.
    endpoint_memory_bytes: Annotated[int, Field(ge=1)] | None = None
    # Memory of one device of each kind, for plans: {"cuda": 85899345920, "cpu": 34359738368}.
    device_memory_bytes: dict[Literal["cpu", "cuda"], Annotated[int, Field(ge=1)]] = {}
    # The host on which gateways reach the engines. Unless it is the loopback address, engines listen on all interfaces.
    engine_host: str = LOOPBACK
    node_name: Annotated[str, Field(min_length=1, max_length=80)] = socket.gethostname()[:80]  # unique per machine
    # Where the engines of endpoints run: on the supervisor's machine (`process`), or on a Ray cluster (`ray`).
    # All supervisors must have the same launcher.
    launcher: Literal["process", "ray"] = "process"
    ray_address: str = "auto"  # host:port of the cluster's head; auto: the cluster of the raylet on this machine
    ray_namespace: Annotated[str, Field(min_length=1, max_length=80)] = "slipstream"  # one per installation
    # Whether the engines on a Ray cluster use TLS. False only while supervisors and gateways of an earlier release run.
    engine_tls: bool = True
    # FIRST-LAST: a range of user ids. All engines and jobs of an organization run as one of them. Requires root.
    engine_uids: str = ""
    suffix_decoding: bool = True  # whether engines also draft by suffix decoding; then the host makes all drafts
    # USD per hour of a worker's device; evaluations compute costs from this price
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    # Percentage of the cost of device time that is credited for attempts that failed with the class infra or bug.
    credit_failed_percent: Annotated[int, Field(ge=0, le=100)] = 100
    # Percentage that is credited for the training of pipelines whose speculator did not pass the gate.
    credit_gate_percent: Annotated[int, Field(ge=0, le=100)] = 100
    # Limit in USD of the credits for gates that one organization gets for one month of usage. There is a limit because
    # customers choose their gates.
    credit_gate_limit: Annotated[float, Field(ge=0, le=1_000_000_000)] = 100.0
    certificate_key: SecretStr | None = None  # Ed25519, 32 bytes in base64; none: derived from the secret key
    # The URL of the console, without a path. Links in mails begin with this URL.
    public_url: Annotated[str, Field(pattern=r"^https?://[^/]+$")] = "http://localhost:8000"
    # smtp://user:password@host:port; smtps:// is TLS from the start, smtp+starttls:// begins TLS after the greeting.
    # None: mails are only printed on standard output.
    smtp_url: SecretStr | None = None
    mail_from: str = "Slipstream <slipstream@localhost>"
    # The URL of an OpenID Connect provider through which members can sign in without a password. None: no provider.
    oidc_issuer: Annotated[str, Field(pattern=r"^https?://")] | None = None
    oidc_name: str = "single sign-on"  # on the button of the sign-in page
    oidc_client_id: str = ""
    oidc_client_secret: SecretStr = SecretStr("")
    webhooks_allow_private: bool = False  # whether customers may name private hosts; for tests only
    log_level: str = "INFO"
    # Logs of jobs, endpoints and components in the data folder of a machine; logs in use are never deleted.
    max_log_file_bytes: Annotated[int, Field(ge=1)] = 64 * MIB  # a larger log is rotated
    max_old_log_files: Annotated[int, Field(ge=0)] = 3  # number of rotated files that are kept for each log
    # limit of the total size of all logs; above it, the least recently written logs are deleted
    max_logs_bytes: Annotated[int, Field(ge=0)] = 2 * 1024 * MIB
    metrics_token: SecretStr | None = None  # required to read /metrics; none: only this machine may read it
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None  # port of /metrics in workers and the supervisor
    tracing: bool = False  # exports OpenTelemetry traces; the OTEL_* variables name the destination

    @model_validator(mode="after")
    def _lease_outlives_two_renewals(self) -> Self:
        if self.lease_seconds < 2 * self.renew_seconds:
            raise ValueError(
                f"lease_seconds must be at least twice renew_seconds, got {self.lease_seconds} and {self.renew_seconds}"
            )
        return self

    @model_validator(mode="after")
    def _tracing_has_its_packages(self) -> Self:
        if self.tracing and find_spec("opentelemetry.sdk") is None:
            raise ValueError("tracing needs the packages of requirements-tracing.txt")
        return self

    @model_validator(mode="after")
    def _oidc_has_its_client(self) -> Self:
        if self.oidc_issuer is not None and not (self.oidc_client_id and self.oidc_client_secret.get_secret_value()):
            raise ValueError("oidc_issuer needs oidc_client_id and oidc_client_secret")
        return self

    @model_validator(mode="after")
    def _devices_are_told_apart(self) -> Self:
        numbers = [(device.kind, device.index) for device in self.devices]
        if len(set(numbers)) < len(numbers):
            raise ValueError("devices must differ in kind or index")
        if both := {str(index) for kind, index in numbers if kind == "cuda"} & self._endpoint_device_names():
            raise ValueError(f"devices and endpoint_devices must not have a device in common, got {sorted(both)}")
        if numbers and ":" in self.device:
            raise ValueError(f"device must have no number if devices are stated, got {self.device!r}")
        return self

    def _endpoint_device_names(self) -> set[str]:
        return {name.strip() for name in (self.endpoint_devices or "").split(",")}

    @field_validator("certificate_key")
    @classmethod
    def _certificate_key_has_32_bytes(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(base64.b64decode(key.get_secret_value(), validate=True)) != 32:
            raise ValueError("certificate_key must be 32 bytes in base64")
        return key

    @property
    def storage_dir(self) -> Path:
        return self.data_dir / "storage"

    @property
    def staging_dir(self) -> Path:
        """The folder for files that are still being received or produced. The writer of a file deletes it."""
        return self.data_dir / "staging"


def get_config() -> Config:
    """Returns the configuration in Django's settings, which tests can override."""
    config = settings.SLIPSTREAM
    assert isinstance(config, Config)
    return config


def database_settings(config: Config) -> dict[str, object]:
    """Returns Django's DATABASES["default"]. Raises: ImproperlyConfigured: `database_url` is not for PostgreSQL."""
    if config.database_url is None:
        return {
            "ENGINE": "control.core.sqlite",
            "NAME": config.data_dir / "slipstream.sqlite3",
            # IMMEDIATE takes the write lock when a transaction begins. A deferred transaction that reads first would
            # fail at its first write with "database is locked", without waiting, if another transaction had written in
            # the meantime. A transaction that cannot begin within 20 s fails: it waits for its turn for at most
            # MAX_WAIT_SECONDS (core/sqlite/turns.py), and then for SQLite's lock for at most `timeout` seconds.
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20 - MAX_WAIT_SECONDS,
                "init_command": "PRAGMA journal_mode=WAL",
            },
        }
    url = urlsplit(config.database_url.get_secret_value())
    if url.scheme not in ("postgresql", "postgres") or not url.path.strip("/"):
        raise ImproperlyConfigured(
            f"SLIPSTREAM_DATABASE_URL must be postgresql://user:password@host:port/name, got scheme {url.scheme!r}"
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path.strip("/")),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": unquote(url.hostname or ""),
        "PORT": str(url.port or ""),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": "5", **dict(parse_qsl(url.query))},
    }
