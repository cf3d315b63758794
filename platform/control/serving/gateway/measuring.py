"""Measures a request to a deployment with a rollout. In mode `shadow`, also copies some requests to the candidate."""

import random
from dataclasses import dataclass

from control.billing.usage.services import Tokens
from control.serving.gateway.observing import Measured
from control.serving.gateway.routes import Process, Trial
from control.serving.gateway.shadowing import MAX_BODY_BYTES, Copy, Shadows
from control.serving.gateway.upstream import Answer
from control.serving.rollouts.evidence import Observation, Side


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Measures one request. The methods never wait, and do nothing if the deployment has no rollout."""

    trial: Trial | None
    shadows: Shadows | None  # None: requests to this route are not copied
    organization_id: str
    request_id: str
    path: str
    body: bytes | None  # as it is sent to the engine; None if the request will not be copied
    memory: str | None
    is_copied: bool = False
    _measured: Measured | None = None

    def __post_init__(self) -> None:
        if self.trial is not None and self.trial.shadows and self.shadows is not None:
            self.is_copied = random.random() * 100 < self.trial.shadow_percent
        if not self.is_copied or (self.body is not None and len(self.body) > MAX_BODY_BYTES):
            self.body = None

    def begin(self, answer: Answer, process: Process) -> Answer:
        """Returns the answer to pass on, whose stream is measured."""
        self._measured = self._of(process)
        return answer if self._measured is None else self._measured.begin(answer)

    def failed(self, process: Process) -> Observation | None:
        """Returns the observation of a request to which the engine gave no answer."""
        measured = self._of(process)
        if measured is None:
            return None
        if self.is_copied:
            self._note_not_comparable(measured)
        return measured.failed()

    def ended(self, tokens: Tokens) -> Observation | None:
        """Returns the observation of a request whose answer is complete, has failed, or was cut off by the caller."""
        measured = self._measured
        if measured is None:
            return None
        if self.is_copied and not measured.is_refusal:
            self._copy(measured)
        return measured.ended(tokens)

    def _of(self, process: Process) -> Measured | None:
        if self.trial is None:
            return None
        return Measured(
            organization_id=self.organization_id,
            rollout_id=self.trial.rollout_id,
            side=self.trial.side_of(process),
            request_id=self.request_id,
            path=self.path,
            keeps_answer=self.body is not None,
        )

    def _copy(self, measured: Measured) -> None:
        assert self.trial is not None
        assert self.shadows is not None
        if self.body is None or measured.kept is None or not measured.is_answered:
            self._note_not_comparable(measured)
            return
        self.shadows.offer(
            Copy(
                organization_id=self.organization_id,
                trial=self.trial,
                request_id=self.request_id,
                path=self.path,
                body=self.body,
                answer=b"".join(measured.kept),
                memory=self.memory,
            )
        )

    def _note_not_comparable(self, measured: Measured) -> None:
        assert self.shadows is not None
        self.shadows.note(
            Observation(
                organization_id=measured.organization_id,
                rollout_id=measured.rollout_id,
                side=Side.CANDIDATE,
                compared="not_comparable",
            )
        )
