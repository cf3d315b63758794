"""Reads the deployment's object every two seconds, in a thread, as a customer's dashboard would."""

import threading
import time
from typing import Self

from benchmarks.day.records import Sample
from slipstream import APIError, Client, Deployment

_EVERY_SECONDS = 2.0
_ASLEEP = ("sleeping", "stopped")


class Observer:
    """Observes within a `with` block. `samples` has the observations so far, and `failures` the errors."""

    def __init__(self, client: Client, deployment_id: str) -> None:
        self.samples: list[Sample] = []
        self.failures: list[str] = []
        self._client, self._deployment_id = client, deployment_id
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=30.0)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            try:
                self.samples.append(sample_of(self._client.deployments.retrieve(self._deployment_id)))
            except APIError as error:
                self.failures.append(str(error))


def sample_of(deployment: Deployment) -> Sample:
    acceptance = deployment.acceptance or {}
    return Sample(
        at=time.time(),
        state=deployment.state,
        replicas=0 if deployment.state in _ASLEEP else deployment.replicas,
        ready_replicas=deployment.ready_replicas,
        speculator=deployment.speculator_id,
        alarm=acceptance.get("state"),
        reference=acceptance.get("reference"),
        current=acceptance.get("current"),
    )
