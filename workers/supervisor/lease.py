"""Renews the claim of a running job from a thread, and signals when the job must stop."""

import threading
import time
from types import TracebackType

import structlog
from django.db import Error, connection

from control.core.settings.config import get_config
from control.queue.jobs.services import job_renew
from control.queue.jobs.state import Claim, LeaseLost
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)


class Lease:
    """A context manager that renews a claim. Its thread sets `lost` and `cancel_requested`, which are never cleared."""

    def __init__(self, claim: Claim) -> None:
        config = get_config()
        self.claim = claim
        self.lost = threading.Event()
        self.cancel_requested = threading.Event()
        self._interval_seconds = config.renew_seconds
        self._lease_seconds = config.lease_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_closed, name=f"lease-{claim.job_id}", daemon=True)

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def check(self) -> None:
        """Renews the claim. Must be called before every write that does not itself compare the fence. Raises:
        LeaseLost."""
        if self.lost.is_set():
            raise LeaseLost(f"job {self.claim.job_id} is no longer held with fence {self.claim.fence}")
        job_renew(claim=self.claim)

    def _renew_until_closed(self) -> None:
        renewed_at = time.monotonic()
        try:
            while not self._closed.wait(self._interval_seconds):
                try:
                    with as_tenant(self.claim.organization_id, None):
                        if job_renew(claim=self.claim):
                            self.cancel_requested.set()
                    renewed_at = time.monotonic()
                except LeaseLost:
                    # `job_renew` also raises if the attempt has just ended, because the last write of an attempt
                    # releases the lease.
                    if not self._closed.is_set():
                        self.lost.set()
                    return
                except Error as error:
                    log.warning("lease not renewed", job_id=self.claim.job_id, error=str(error))
                    connection.close()
                    if time.monotonic() - renewed_at > self._lease_seconds:
                        self.lost.set()
                        return
        finally:
            connection.close()
