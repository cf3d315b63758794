"""Evaluations compare the answers to held-out prompts with and without a speculator, and certify the result."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.errors import EvaluationFailed
from slipstream.files import save
from slipstream.http import D, Resource, path_of
from slipstream.plans import EnginePlan
from slipstream.types import Evaluation
from slipstream.waiting import wait_for


class Evaluations(Resource[D]):
    @procedure
    def create(
        self,
        *,
        speculator_id: str,
        prompts_file: str | None = None,
        concurrencies: Sequence[int] | None = None,
        max_tokens: int | None = None,
        repeats: int | None = None,
        price_per_gpu_hour: float | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
        compare_with: Sequence[str] | None = None,
    ) -> Steps[Evaluation]:
        """Start an evaluation of a speculator.

        Args:
            prompts_file: id of a file of batch rows; the default is the prompts held out from training.
            concurrencies: the numbers of requests at once, one measurement for each; the default is 1, 4, 16 and 32.
            max_tokens: an upper limit for the `max_tokens` of every row.
            price_per_gpu_hour: price in USD, from which the report computes the cost of a million tokens; the default
                is the installation's price.
            engine: the options with which the speculator will be served; `slipstream.plans` lists them.
            hardware: `device_kind` or `name` of the device, as listed by `hardware.list`; the default is any device.
            compare_with: up to four further drafters to measure: `suffix`, `ngram`, or ids of speculators or base
                speculators for the same model. The report then also has `arms` and `pairs`.
        """
        body = {
            "speculator_id": speculator_id,
            "prompts_file": prompts_file,
            "concurrencies": None if concurrencies is None else list(concurrencies),
            "max_tokens": max_tokens,
            "repeats": repeats,
            "price_per_gpu_hour": price_per_gpu_hour,
            "engine": engine,
            "hardware": hardware,
            "compare_with": None if compare_with is None else list(compare_with),
        }
        return self.http.post(Evaluation, "evaluations", body)

    @procedure
    def plan(
        self,
        *,
        speculator_id: str,
        prompts_file: str | None = None,
        concurrencies: Sequence[int] | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
        compare_with: Sequence[str] | None = None,
    ) -> Steps[EnginePlan]:
        """Show how the engines of an evaluation with these arguments would use their memory. Nothing is created."""
        body = {
            "speculator_id": speculator_id,
            "prompts_file": prompts_file,
            "concurrencies": None if concurrencies is None else list(concurrencies),
            "engine": engine,
            "hardware": hardware,
            "compare_with": None if compare_with is None else list(compare_with),
            "validate_only": True,
        }
        return self.http.post(EnginePlan, "evaluations", body)

    @procedure
    def retrieve(self, evaluation_id: str) -> Steps[Evaluation]:
        return self.http.get(Evaluation, path_of("evaluations", evaluation_id))

    @listing
    def list(self, *, speculator_id: str | None = None) -> Items[Page[Evaluation]]:
        return self.http.pages(Evaluation, "evaluations", {"speculator_id": speculator_id})

    @procedure
    def cancel(self, evaluation_id: str) -> Steps[Evaluation]:
        return self.http.post(Evaluation, path_of("evaluations", evaluation_id, "cancel"))

    @procedure
    def capacity(
        self,
        evaluation_id: str,
        *,
        requests_per_second: float,
        output_tokens: float | None = None,
        input_tokens: float | None = None,
        concurrency: int | None = None,
        utilisation: float | None = None,
        device_kind: str | None = None,
        price_per_device_hour: float | None = None,
    ) -> Steps[dict[str, Any]]:
        """Return how many devices a rate of requests needs and their cost per month, with and without the speculator.

        Args:
            output_tokens: mean number of tokens of an answer; None: the mean of the evaluation's answers.
            input_tokens: mean number of tokens of a prompt. If it is given, the plan is marked as extrapolated.
            concurrency: one of the concurrencies of the evaluation; None: the highest of them.
            utilisation: the fraction of the measured speed with which the plan calculates; None: 0.7.
        """
        query = {
            "requests_per_second": requests_per_second,
            "output_tokens": output_tokens,
            "input_tokens": input_tokens,
            "concurrency": concurrency,
            "utilisation": utilisation,
            "device_kind": device_kind,
            "price_per_device_hour": price_per_device_hour,
        }
        return self.http.get(dict, path_of("evaluations", evaluation_id, "capacity"), query)

    @procedure
    def certificate(self, evaluation_id: str) -> Steps[dict[str, Any]]:
        """Return the certificate, which `slipstream.certificates.verify` checks."""
        return self.http.get(dict, path_of("evaluations", evaluation_id, "certificate"))

    @procedure
    def save_certificate(self, evaluation_id: str, to: Path | str) -> Steps[Path]:
        certificate = yield from self.http.get(dict, path_of("evaluations", evaluation_id, "certificate"))
        path = Path(to)
        path.write_text(json.dumps(certificate, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @procedure
    def public_key(self) -> Steps[str]:
        """Return the public key for this service's certificates, as PEM."""
        response = yield from self.http.get(dict, "certificates/public_key")
        return str(response["public_key"])

    @procedure
    def plot(self, evaluation_id: str, to: Path | str) -> Steps[Path]:
        """Save the plot of acceptance by position and speed by concurrency (PNG)."""
        return save(self.http, path_of("evaluations", evaluation_id, "plot"), Path(to))

    @procedure
    def wait(
        self,
        evaluation_id: str,
        *,
        on_progress: Callable[[Evaluation], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Evaluation]:
        """Return the evaluation when its report is ready.

        Raises:
            EvaluationFailed: the evaluation failed or was cancelled.
            WaitTimeout: `timeout_seconds` have passed; the evaluation continues.
        """
        evaluation = yield from wait_for(
            lambda: self.http.get(Evaluation, path_of("evaluations", evaluation_id)),
            lambda evaluation: evaluation.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )
        if evaluation.status != "succeeded":
            raise EvaluationFailed(evaluation)
        return evaluation
