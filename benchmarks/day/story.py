"""What happens in the course of the day, as calls of the public API. It records; `verdicts` judges.

A step that waits for something in vain is recorded as ended, and the day goes on: the verdicts then say what is wrong.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.day.observing import Observer
from benchmarks.day.plan import (
    AFTERNOON,
    ALARM,
    ENDPOINT,
    ENGINE,
    HELD_OUT,
    MORNING,
    PLAIN_ENGINE,
    SCALING,
    SHADOW,
    TRAINING,
    Plan,
)
from benchmarks.day.records import Answer, Day, Request
from benchmarks.day.traffic import Traffic
from benchmarks.day.worse import spoil
from examples.prepare_model import MODEL_NAME
from slipstream import Client, Deployment, LoopRound, Rollout

_POLL_SECONDS = 1.0
# The longest waits, for a busy machine.
_REPLICA_SECONDS, _SLEEP_SECONDS, _ALARM_SECONDS, _ROUND_SECONDS, _ROLLOUT_SECONDS = 600.0, 600.0, 600.0, 2400.0, 900.0


class Story:
    def __init__(self, client: Client, plan: Plan, day: Day, folder: Path) -> None:
        self._client, self._plan, self._day, self._folder = client, plan, day, folder
        self._requests: dict[str, Iterator[Request]] = {
            MORNING: plan.requests(MORNING),
            AFTERNOON: plan.requests(AFTERNOON),
        }
        self._traffic = Traffic(client, plan, self._requests)
        self._deployment_id = ""

    def run(self) -> None:
        """Raises: SlipstreamError: a call of the API failed that no step expects to fail."""
        with self._step("first speculator"):
            self._deploy()
        with Observer(self._client, self._deployment_id) as observer:
            self._day.samples = observer.samples
            try:
                self._serve()
            finally:
                self._traffic.close()
                self._day.streams = self._traffic.ended
        with self._step("plain answers"):
            self._answer_plainly(self._traffic.sent)
        self._collect()

    def _serve(self) -> None:
        with self._step("rush"):
            self._rush()
        with self._step("morning"):
            self._traffic.paced("morning", MORNING, until=lambda: self._alarm() == "watching")
            self._wait(lambda: self._alarm() == "watching", _ALARM_SECONDS)
        with self._step("idle"):
            self._wait(lambda: self._deployment().state == "sleeping", _SLEEP_SECONDS)
        with self._step("wake"):
            self._traffic.send("wake", MORNING).result()
        with self._step("shift"):
            self._traffic.paced("shift", AFTERNOON, until=self._has_data)
            self._wait(lambda: self._round() is not None, _ALARM_SECONDS)
        with self._step("round"):
            self._wait(self._is_rolling_out, _ROUND_SECONDS)
        with self._step("canary"):
            self._canary()
        with self._step("shadow"):
            self._shadow()
        with self._step("evening"):
            self._wait(self._is_up, _REPLICA_SECONDS)
            self._traffic.keep_open("evening", AFTERNOON, concurrency=self._plan.concurrency)

    def _deploy(self) -> None:
        """Trains and deploys the first speculator, and sets what the deployment shall do by itself."""
        prompts = self._write("distill.jsonl", list(self._plan.distilled()))
        pipeline = self._client.pipelines.create(
            name=ENDPOINT,
            model=MODEL_NAME,
            prompts_file=self._client.files.upload(prompts).id,
            held_out=HELD_OUT,
            training=TRAINING,
            evaluation={"concurrencies": [1], "max_tokens": self._plan.max_tokens},
            gate={"min_speedup": 0.0, "min_acceptance_length": 1.2},
            engine=ENGINE,
        ).wait()
        assert pipeline.deployment_id is not None, "a live pipeline has a deployment"
        self._deployment_id, self._day.first_speculator = pipeline.deployment_id, pipeline.speculator_id
        self._client.deployments.update(self._deployment_id, scaling=SCALING, acceptance_alarm=ALARM)
        self._client.captures.set(self._deployment_id, hours=1)
        self._client.loops.set(self._deployment_id, **self._plan.loop())

    def _rush(self) -> None:
        """Half of the streams come at once, the others when the second replica is ready."""
        half = self._plan.limit("rush") // 2
        self._traffic.keep_open(
            "rush", MORNING, concurrency=self._plan.rush_concurrency, until=lambda: self._traffic_sent() >= half
        )
        self._wait(lambda: self._deployment().ready_replicas >= 2, _REPLICA_SECONDS)
        self._traffic.keep_open("rush", MORNING, concurrency=self._plan.rush_concurrency)

    def _traffic_sent(self) -> int:
        return len(self._traffic.sent)

    def _canary(self) -> None:
        made = self._round()
        if made is None or made.rollout_id is None:
            return
        rollout_id = made.rollout_id
        self._wait(lambda: self._rollout(rollout_id).status != "starting", _ROLLOUT_SECONDS)
        self._traffic.keep_open(
            "canary",
            AFTERNOON,
            concurrency=self._plan.concurrency,
            until=lambda: self._rollout(rollout_id).status != "canary",
        )
        self._wait(lambda: (now := self._round()) is None or now.is_final, _ROLLOUT_SECONDS)
        self._client.loops.update(self._deployment_id, enabled=False)  # also ends a round that is still undecided

    def _shadow(self) -> None:
        """Rolls out the serving speculator with noise for weights."""
        serving = self._deployment().speculator_id
        assert serving is not None, "the deployment serves with a speculator"
        exported = self._client.speculators.export(serving, format="medusa")
        good = self._client.files.download(exported.id, self._folder / "good.zip")
        uploaded = self._client.files.upload(spoil(good, self._folder / "worse.zip"))
        worse = self._client.speculators.import_(file_id=uploaded.id, format="medusa", model=MODEL_NAME, name="worse")
        self._wait(self._is_up, _REPLICA_SECONDS)
        rollout = self._client.rollouts.create(self._deployment_id, speculator_id=worse.id, **SHADOW)
        self._wait(lambda: self._rollout(rollout.id).status != "starting", _ROLLOUT_SECONDS)
        self._traffic.keep_open(
            "shadow",
            AFTERNOON,
            concurrency=self._plan.concurrency,
            until=lambda: self._rollout(rollout.id).status != "canary",
        )
        self._wait(lambda: self._rollout(rollout.id).is_final, _ROLLOUT_SECONDS)
        self._day.worse_rollout = asdict(self._rollout(rollout.id))

    def _answer_plainly(self, requests: list[Request]) -> None:
        """Answers the same requests in a batch without speculation."""
        rows = self._client.files.upload(self._write("plain.jsonl", requests))
        batch = self._client.batches.create(input_file_id=rows.id, engine=PLAIN_ENGINE)
        self._client.batches.wait(batch.id)
        for row in self._client.batches.results(batch.id):
            body = (row.get("response") or {}).get("body") or {}
            for choice in body.get("choices") or []:
                text = choice["message"].get("content") or ""
                answer = Answer(text, choice["finish_reason"], tuple(choice.get("token_ids") or ()))
                self._day.plain[row["custom_id"]] = answer

    def _collect(self) -> None:
        self._day.rounds = [asdict(each) for each in self._client.loops.rounds(self._deployment_id)]
        self._day.events = [
            {"type": event.type, "object_id": event.object_id, "created_at": event.created_at}
            for event in self._client.events.list()
        ]
        self._day.ledger = [
            {"subject": line.subject, "ended_at": line.ended_at, "cost": line.cost["value"]}
            for line in self._client.usage.ledger(start_time=int(self._day.started_at))
        ]

    def _write(self, name: str, requests: list[Request]) -> Path:
        rows = (
            {
                "custom_id": request.name,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": MODEL_NAME, **request.body},
            }
            for request in requests
        )
        path = self._folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def _deployment(self) -> Deployment:
        return self._client.deployments.retrieve(self._deployment_id)

    def _is_up(self) -> bool:
        return self._deployment().state in ("ready", "sleeping")

    def _alarm(self) -> str | None:
        return (self._deployment().acceptance or {}).get("state")

    def _round(self) -> LoopRound | None:
        """Returns the latest round."""
        return next(iter(self._client.loops.rounds(self._deployment_id)), None)

    def _has_data(self) -> bool:
        """Whether a round has begun and has enough captured requests."""
        made = self._round()
        return made is not None and made.status != "capturing"

    def _is_rolling_out(self) -> bool:
        """Whether the round has a rollout, or will have none."""
        made = self._round()
        return made is None or made.rollout_id is not None or made.is_final

    def _rollout(self, rollout_id: str) -> Rollout:
        return self._client.rollouts.retrieve(self._deployment_id, rollout_id)

    def _wait(self, predicate: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not predicate() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started = time.time()
        self._day.steps.append((name, started))
        print(f"{started - self._day.started_at:6.0f} s  {name}", file=sys.stderr, flush=True)
        yield
