"""Public ids: a prefix, the time and random digits. They sort by time of creation and cannot be guessed."""

import secrets
import time

BASE_SPECULATOR = "bspec_"  # distinguishes these ids from the ids of organizations' speculators


def new_id(prefix: str) -> str:
    """Returns the prefix (with its separator), then 11 hex digits of Unix milliseconds and 16 random hex digits."""
    return f"{prefix}{time.time_ns() // 1_000_000:011x}{secrets.token_hex(8)}"


# Each kind of id has a named function, because migrations refer to a column's default by its import path.


def organization_id() -> str:
    return new_id("org_")


def project_id() -> str:
    return new_id("proj_")


def member_id() -> str:
    return new_id("member_")


def file_id() -> str:
    return new_id("file-")


def upload_id() -> str:
    return new_id("upload_")


def upload_part_id() -> str:
    return new_id("part_")


def dataset_id() -> str:
    return new_id("dataset_")


def fine_tuning_job_id() -> str:
    return new_id("ftjob-")


def base_model_id() -> str:
    return new_id("model_")


def speculator_id() -> str:
    return new_id("spec_")


def base_speculator_id() -> str:
    return new_id(BASE_SPECULATOR)


def job_id() -> str:
    return new_id("job_")


def evaluation_id() -> str:
    return new_id("eval_")


def batch_id() -> str:
    return new_id("batch_")


def pipeline_id() -> str:
    return new_id("pipe_")


def deployment_id() -> str:
    return new_id("dep_")


def event_id() -> str:
    return new_id("evt_")


def webhook_endpoint_id() -> str:
    return new_id("whep_")


def webhook_delivery_id() -> str:
    return new_id("whd_")


def quote_id() -> str:
    return new_id("quote_")


def spend_cap_id() -> str:
    return new_id("cap_")


def spend_reservation_id() -> str:
    return new_id("hold_")


def distillation_id() -> str:
    return new_id("distill_")


def adapter_id() -> str:
    return new_id("adapter_")


def rollout_id() -> str:
    return new_id("rollout_")


def threshold_id() -> str:
    return new_id("threshold_")


def loop_id() -> str:
    return new_id("loop_")


def loop_round_id() -> str:
    return new_id("round_")
