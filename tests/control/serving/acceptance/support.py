"""A deployment with samples of its engine's counters, and a clock that the test moves."""

import datetime as dt

import pytest
from django.utils import timezone

from control.models.catalog.models import Speculator
from control.serving.acceptance.services import SETTLE, acceptance_watch_all
from control.serving.deployments.measuring import COUNTERS
from control.serving.deployments.models import Deployment, DeploymentSample
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_replica, make_speculator

START = dt.datetime(2026, 3, 2, 12, 0, tzinfo=dt.UTC)


def make_watched(organization: Organization, name: str = "support") -> Deployment:
    """Makes a deployment that is ready and serves a speculator."""
    model = make_base_model()
    speculator = make_speculator(model, organization, name=name)
    made = Deployment.objects.create(
        organization=organization,
        name=name,
        base_model=model,
        speculator=speculator,
        state=Deployment.State.READY,
        observed_generation=1,
    )
    make_replica(made, state="ready", port=1)
    return made


class Traffic:
    """Adds samples, one for each minute, and moves the clock. `serve` also lets a worker read them."""

    def __init__(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deployment = deployment
        self._now, self._drafts, self._accepted = START, 0.0, 0.0
        monkeypatch.setattr(timezone, "now", lambda: self._now + SETTLE)
        acceptance_watch_all()
        self.skip_minute()

    def serve(self, *, minutes: int, length: float, drafts: float = 1_000.0) -> None:
        for _ in range(minutes):
            self.add(minutes=1, length=length, drafts=drafts)
            acceptance_watch_all()

    def add(self, *, minutes: int, length: float, drafts: float = 1_000.0) -> None:
        for _ in range(minutes):
            self._drafts += drafts
            self._accepted += drafts * (length - 1.0)
            self._sample()
            self._now += dt.timedelta(minutes=1)

    def skip_minute(self) -> None:
        """Lets a minute pass without requests."""
        self._sample()
        self._now += dt.timedelta(minutes=1)

    def other_speculator(self) -> Speculator:
        return make_speculator(self.deployment.base_model, self.deployment.organization, version=2)

    def _sample(self) -> None:
        counters = {**dict.fromkeys(COUNTERS, 0.0), "drafts": self._drafts, "accepted_tokens": self._accepted}
        made = DeploymentSample.objects.create(deployment=self.deployment, process="7:noon", counters=counters)
        DeploymentSample.objects.filter(pk=made.pk).update(at=self._now + dt.timedelta(seconds=20))
